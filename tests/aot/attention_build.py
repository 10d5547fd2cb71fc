"""Owns attention kernels for tests: a lowered attention cut into the region that one kernel covers, and its rendered text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.families.roles import AttentionRoles, attention_roles
from kernelgen.codegen.step_args import ArgsLayout, args_layout
from kernelgen.codegen.triton.attention import decode_context, prefill_context
from kernelgen.codegen.rendering import render
from kernelgen.core.dtypes import BFLOAT16, DType
from kernelgen.ir.graph import Block, BlockBuilder
from kernelgen.ir.op import Trait
from kernelgen.lower.attention import attention
from kernelgen.lower.scope import STREAM, Numerics, Scope, rope_tables
from kernelgen.planner.caches import CacheSchema, cache_schema
from kernelgen.planner.family import Match
from kernelgen.planner.network import Network, Region
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel
from kernelgen.spec.model import AttentionSpec, CacheSpec, LayerSpec

_HIDDEN = 64


@dataclass(frozen=True)
class Built:
    """One rendered attention kernel with what it was made from."""

    kernel: Kernel
    cache: CacheSchema
    args: ArgsLayout
    text: str

    @property
    def signature(self) -> tuple[str, ...]:
        """Values in operand order."""
        return self.kernel.signature


def attention_block(spec: AttentionSpec, dtype: DType) -> Block:
    """Projections, norms, rotation, insert and attention of one layer."""
    tables = {}
    if spec.rope is not None:
        layer = LayerSpec(attention=spec, mlp=None, norm_eps=1e-6)  # type: ignore[arg-type]
        tables = rope_tables([layer], 4096)
    scope = Scope(BlockBuilder("layer"), Numerics.of(dtype, dtype), tables)
    out = attention(scope, "attn", scope.stream(_HIDDEN), spec, 1e-6)
    return scope.builder.build([(STREAM, out)])


def build(
    phase: str,
    spec: AttentionSpec,
    dtype: DType = BFLOAT16,
    *,
    layers: int = 2,
    max_tokens: int = 64,
    max_rows: int = 8,
    max_positions: int = 512,
    prepared: bool = True,
) -> Built:
    """The attention kernel of a phase. `prepared`: norms, rotation and (in decode) the insert are part of it."""
    net = Network(attention_block(spec, dtype))
    mask = 0
    for i, node in enumerate(net.nodes):
        inside = not node.op.has(Trait.MATMUL) if prepared else node.op.has(Trait.ATTENTION)
        if phase != "decode" and prepared:
            inside = node.op.has(Trait.ATTENTION) or node.name.startswith(
                ("attn.q_norm", "attn.q_rope")
            )
        mask |= inside << i
    region = Region(net, mask)
    roles = attention_roles(region, phase)
    assert isinstance(roles, AttentionRoles), roles
    outputs = [roles.anchor.outputs[0]]
    besides = [SCRATCH, COUNTERS] if phase == "decode" else []
    match = Match(None, region, roles, "", phase=phase)  # type: ignore[arg-type]
    kernel = Kernel(f"attn_{phase}", match, (*region.inputs, *outputs, *besides))
    entry = CacheSpec(spec.kv_heads, spec.head_dim, spec.window, Numerics.of(dtype, dtype).cache)
    cache = cache_schema(tuple((i, entry) for i in range(layers)))
    args = args_layout(cache, max_tokens, max_rows, max_positions)
    context: dict[str, Any] = (decode_context if phase == "decode" else prefill_context)(
        kernel, cache, args
    )
    template = "attention_decode" if phase == "decode" else "attention_prefill"
    text = render(f"triton/{template}.py.j2", name=kernel.name, header=[kernel.name], **context)
    return Built(kernel, cache, args, text)
