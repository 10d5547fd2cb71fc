"""Owns `manifest.json` and `kernels.json`: what a build tells its runtime and its checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from kernelgen.codegen.artefact import OperandInfo
from kernelgen.codegen.cpp.kernels import signature
from kernelgen.codegen.cpp.program import CppProgram
from kernelgen.codegen.cuda.host import StepProgram
from kernelgen.codegen.packed import packed_source, packed_tensors
from kernelgen.codegen.step_args import ArgsField, ArgsLayout
from kernelgen.codegen.step_rules import LOGPROB_WORDS, RulesLayout, mask_words
from kernelgen.codegen.weights import BoundWeight
from kernelgen.core.digest import digest_json
from kernelgen.formats.stored import StoredMatrix
from kernelgen.ir.codec import block_to_json
from kernelgen.ir.op import Trait
from kernelgen.ir.subgraph import sub_block
from kernelgen.planner.caches import PAGE_TOKENS, CacheGroup, CacheSchema
from kernelgen.planner.plan import Kernel, Plan
from kernelgen.spec.model import (
    DeltaSpec,
    LatentSpec,
    MixerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
)

SCHEMA = 2
ABI = 1
_STORED = ["BF16", "F16", "F32"]
Scalars = Mapping[str, Sequence[Sequence[str]]]
"""parameter → for each of its numbers the tensors that may hold it, the first that is there wins"""


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor that the checkpoint must hold, and the parameter that it fills."""

    name: str
    shape: tuple[int, ...]
    parameter: str
    take: tuple[int, int, int] | None = None
    """(first, count, period): of each `period` rows `count` from `first` on; None: all"""
    expert: int | None = None
    """which matrix of the parameter's stack; None: the tensor holds all of it"""


@dataclass(frozen=True)
class Identity:
    """Who made what: the head of a manifest."""

    name: str
    version: str
    generator: str
    activation_dtype: str
    toolchain: Mapping[str, str]


@dataclass(frozen=True)
class Library:
    """One compiled library, its place in the build, whether what it needs was here to run it."""

    isa: str
    path: str
    measured: bool


@dataclass(frozen=True)
class TargetBuild:
    """What was built for one target: its libraries, and all that a runtime has to bind for them.

    `workspace_bytes`: of each plan, everything that its kernels address in the workspace.
    `device_names`: how the driver spells the device that the plans were made for. `counters`:
    int32 words that are zero before each step. `sources`: generated text, path → text.
    """

    target: str
    libraries: Sequence[Library]
    weights: Sequence[BoundWeight]
    cache: CacheSchema
    args: ArgsLayout
    plans: Sequence[Plan]
    workspace_bytes: Sequence[int]
    sources: Mapping[str, str]
    rules: RulesLayout | None
    device_names: Sequence[str] = ()
    counters: int = 0


def cpu_target(program: CppProgram, libraries: Sequence[Library]) -> TargetBuild:
    """The CPU program as a target of the manifest."""
    return TargetBuild(
        target="cpu",
        libraries=libraries,
        weights=program.weights,
        cache=program.cache,
        args=program.args,
        plans=program.plans,
        workspace_bytes=[p.workspace_bytes for p in program.plans],
        sources=program.units,
        rules=program.rules,
    )


def manifest(
    identity: Identity,
    spec: ModelSpec,
    targets: Sequence[TargetBuild],
    tensors: Sequence[CheckpointTensor],
    ignored: Sequence[str],
    matrices: Mapping[str, StoredMatrix] = MappingProxyType({}),
    config: Mapping[str, Any] = MappingProxyType({}),
    scalars: Scalars = MappingProxyType({}),
) -> dict[str, Any]:
    """The manifest as JSON data, targets in the order given; equal inputs give equal data.

    `matrices`: those that are quantised, by parameter; `tensors` has the others. `config`: what of
    the checkpoint's config the model was read from, so that other weights are known by theirs.
    `scalars`: what is a few numbers, by parameter, each a tensor that the checkpoint may have.
    """
    of_parameter: dict[str, list[CheckpointTensor]] = {}
    for tensor in tensors:
        of_parameter.setdefault(tensor.parameter, []).append(tensor)
    return {
        "schema": SCHEMA,
        "abi": ABI,
        "name": identity.name,
        "version": identity.version,
        "generator": identity.generator,
        "architecture": spec.architecture,
        "activation_dtype": identity.activation_dtype,
        "model": _semantics(spec),
        "targets": [
            _target(target, of_parameter, matrices, spec.vocab, scalars) for target in targets
        ],
        "tensors": [
            *(
                {"name": name, "shape": list(shape), "dtypes": _STORED}
                for name, shape in {t.name: t.shape for t in tensors}.items()
            ),
            *packed_tensors(matrices.values()),
        ],
        "ignored": list(ignored),
        **({"config": dict(config)} if config else {}),
        "chat": {"eos_token_ids": list(spec.eos_ids), "bos_token_id": spec.bos_id},
        "hashes": {"spec": digest_json(repr(spec))},
        "toolchain": dict(identity.toolchain),
    }


def kernel_list(program: CppProgram) -> list[dict[str, Any]]:
    """`kernels.json`: every kernel with its operands and its own piece of graph, for checkers."""
    return [
        _listed(source.kernel, source.path, source.signature, program.plans)
        for source in program.kernels
    ]


def gpu_kernel_list(program: StepProgram) -> list[dict[str, Any]]:
    """The same of a GPU's kernels. A kernel has a source for each tile; listed is the first."""
    first = {launch.kernel.name: launch for p in program.plans for launch in reversed(p.launches)}
    return [
        _listed(
            launch.kernel,
            f"{program.folder}/{program.kernel(launch).passes[0].unit.name}.py",
            signature(launch.kernel, {}),
            program.plans,
        )
        for launch in first.values()
    ]


def _listed(
    kernel: Kernel, path: str, operands: Sequence[OperandInfo], plans: Sequence[Plan]
) -> dict[str, Any]:
    phases = {p.phase for p in plans for k in p.kernels if k.name == kernel.name}
    return {
        "name": kernel.name,
        "family": kernel.match.family.name,
        "variant": kernel.match.variant,
        "source": path,
        "ops": list(kernel.ops),
        "phases": sorted(phases),
        "signature": [
            {
                "role": o.role,
                "name": o.name,
                "dtype": o.dtype,
                "shape": list(o.shape),
                "layout": o.layout,
            }
            for o in operands
        ],
        "graph": sub_graph(kernel),
    }


def sub_graph(kernel: Kernel) -> dict[str, Any]:
    """What a kernel computes, as a block of its own; views of what it reads belong to it."""
    region = kernel.match.region
    block = region.network.block
    names = set(kernel.ops)
    chosen = {i for i, node in enumerate(block.nodes) if node.name in names}
    wanted = {name for i in chosen for name in block.nodes[i].inputs}
    for i in reversed(range(len(block.nodes))):
        node = block.nodes[i]
        if node.op.has(Trait.VIEW) and node.outputs[0] in wanted:
            chosen.add(i)
            wanted |= set(node.inputs)
    return block_to_json(sub_block(block, kernel.name, chosen, region.outputs))


def _semantics(spec: ModelSpec) -> dict[str, Any]:
    """What a runtime, or a person, may want to know of the model; equal layers are said once."""
    kinds, of_layer = spec.kinds()
    return {
        "layers": len(spec.layers),
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "max_positions": spec.max_positions,
        "norm_eps": spec.norm_eps,
        "tied_head": spec.tied_head,
        "embedding_multiplier": spec.embedding_multiplier,
        "logits_scaling": spec.logits_scaling,
        "kinds": [
            {
                **_mixer(k.attention),
                "intermediate": k.mlp.intermediate,
                **_experts(k.mlp),
                "norm_eps": k.norm_eps,
                "residual_multiplier": k.residual_multiplier,
            }
            for k in kinds
        ],
        "kind_of_layer": list(of_layer),
    }


def _mixer(mixer: MixerSpec) -> dict[str, Any]:
    """What mixes the tokens of a layer."""
    if isinstance(mixer, LatentSpec):
        sizes = {"nope": mixer.nope, "beside": mixer.beside, "value_dim": mixer.value_dim}
        return {"mixer": "latent", "heads": mixer.heads, "rank": mixer.rank, **sizes}
    if isinstance(mixer, DeltaSpec):
        sizes = {"head_dim": mixer.head_dim, "taps": mixer.taps}
        return {"mixer": "delta", "heads": mixer.heads, **sizes}
    return {
        "heads": mixer.heads,
        "kv_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "scale": mixer.scale,
        "window": mixer.window,
        "sinks": mixer.sinks,
        "qk_norm": mixer.qk_norm,
        "rope_theta": None if mixer.rope is None else mixer.rope.theta,
    }


def _experts(mlp: MlpSpec | MoeSpec) -> dict[str, Any]:
    """What is said of a layer with routed experts only."""
    if isinstance(mlp, MlpSpec):
        return {}
    shared = mlp.shared.intermediate if mlp.shared else 0
    chosen = {"experts": mlp.router.experts, "experts_per_token": mlp.router.top_k}
    return {**chosen, "shared_intermediate": shared}


def _weight(
    weight: BoundWeight,
    tensors: Mapping[str, Sequence[CheckpointTensor]],
    matrices: Mapping[str, StoredMatrix],
    scalars: Scalars,
) -> dict[str, Any]:
    common: dict[str, Any] = {
        "name": weight.name,
        "dtype": weight.dtype,
        "shape": list(weight.shape),
    }
    if weight.cut is not None:
        common["cut"] = asdict(weight.cut)
    if weight.table is not None:
        table = weight.table
        rope = {
            "inv_freq": list(table.inv_freq),
            "scale": table.scale,
            "positions": table.positions,
        }
        return {**common, "source": {"rope": rope}}
    if weight.name in scalars:
        return {**common, "source": {"scalars": [list(names) for names in scalars[weight.name]]}}
    if weight.format is not None:
        source = packed_source(matrices[weight.name])
        return {**common, "layout": weight.layout, "source": {"packed": source}}
    held = sorted(tensors[weight.name], key=lambda t: t.expert or 0)
    parts = [_part(tensor, weight.matrix) for tensor in held]
    stack = {"stack": weight.matrix[0]} if len(weight.matrix) == 3 else {}
    return {
        **common,
        "source": "checkpoint",
        "layout": weight.layout,
        "interleave": 0,
        **stack,
        "parts": parts,
    }


def _part(tensor: CheckpointTensor, matrix: tuple[int, ...]) -> dict[str, Any]:
    """All of a matrix, or of a stack of them, or the one matrix that the tensor holds."""
    rows, cols = prod(matrix[:-1]), matrix[-1]
    if len(matrix) == 1:
        rows, cols = cols, 1
    if tensor.expert is not None:
        rows //= matrix[0]
    part: dict[str, Any] = {"tensor": tensor.name, "rows": rows, "cols": cols}
    return part if tensor.take is None else part | {"take": list(tensor.take)}


def _target(
    build: TargetBuild,
    tensors: Mapping[str, Sequence[CheckpointTensor]],
    matrices: Mapping[str, StoredMatrix],
    vocabulary: int,
    scalars: Scalars,
) -> dict[str, Any]:
    return {
        "target": build.target,
        "device_names": list(build.device_names),
        "libraries": [
            {"isa": lib.isa, "path": lib.path, "measured": lib.measured} for lib in build.libraries
        ],
        "weights": [_weight(w, tensors, matrices, scalars) for w in build.weights],
        "cache": _cache(build.cache),
        "args": _args(build.args),
        **({"rules": _rules(build.rules, vocabulary)} if build.rules else {}),
        "plans": [
            {
                "id": i,
                "phase": plan.phase,
                "size": plan.size,
                "logit_rows": plan.sizes.capacity.rows,
                "workspace_bytes": workspace,
            }
            for i, (plan, workspace) in enumerate(
                zip(build.plans, build.workspace_bytes, strict=True)
            )
        ],
        "counters": build.counters,
        "batch_invariant": bool(build.plans) and build.plans[0].varying is not None,
        "hashes": {
            "plans": digest_json([p.to_json() for p in build.plans]),
            "sources": {path: digest_json(text) for path, text in sorted(build.sources.items())},
        },
        "coverage": {f"{p.phase} {p.size}": p.coverage() for p in build.plans},
    }


def _cache(cache: CacheSchema) -> dict[str, Any]:
    states = {"state_bytes": cache.state_bytes} if cache.state_bytes else {}
    return {
        "page_tokens": PAGE_TOKENS,
        "page_bytes": cache.page_bytes,
        **states,
        "groups": [
            {
                "name": g.name,
                "kind": _kind(g),
                "window": g.window,
                "layers": list(g.layers),
            }
            for g in cache.groups
        ],
    }


def _kind(group: CacheGroup) -> str:
    if group.per_request:
        return "state"
    return "full" if group.window is None else "window"


def _args(args: ArgsLayout) -> dict[str, Any]:
    return {
        "words": args.words,
        "max_tokens": args.max_tokens,
        "max_rows": args.max_rows,
        "max_pages": args.max_pages,
        "fields": _fields(args.fields),
    }


def _rules(rules: RulesLayout, vocabulary: int) -> dict[str, Any]:
    return {
        "words": rules.words,
        "logprob_words": LOGPROB_WORDS,
        "mask_words": mask_words(vocabulary),
        "fields": _fields(rules.fields),
    }


def _fields(fields: Sequence[ArgsField]) -> list[dict[str, Any]]:
    return [
        {"name": f.name, "offset": f.offset, "shape": list(f.shape), "bits": f.bits} for f in fields
    ]
