"""Mixtures of experts as blocks: kernels on the CPU, operands, which results are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from kernelgen.codegen.cpp.program import cpp_program
from kernelgen.codegen.families import catalogue
from kernelgen.compile.cpp import CppSource, compile_cpp
from kernelgen.compile.store import Store
from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.formats import WeightFormat, weight_format
from kernelgen.hw import parse_target
from kernelgen.ir.expr import arg
from kernelgen.ir.graph import Block, BlockBuilder, Graph, Placement, Role
from kernelgen.ir.reformat import with_formats
from kernelgen.ir.types import Dim, Type
from kernelgen.lower.moe import mixture
from kernelgen.lower.residual import add_residual
from kernelgen.lower.scope import STREAM, Numerics, Scope
from kernelgen.ops import ChooseExperts, Pointwise
from kernelgen.ops.step import StepView
from kernelgen.planner.plan import SCRATCH, Plan
from kernelgen.planner.planner import Planner
from kernelgen.spec.experts import ExpertMap, RouterSpec, Scoring
from kernelgen.spec.model import Activation, CacheSpec, MlpSpec, MoeSpec
from kernelgen.verify.bounded import AS_WRITTEN, Arithmetic
from kernelgen.verify.bounds import evaluate_bounded
from kernelgen.verify.layouts import laid_out
from kernelgen.verify.library import KernelLibrary
from kernelgen.verify.packed import random_packed

NO_STEP = StepView(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
NAN = float("nan")
GIVEN = "given:"
"""before the name of a packed weight: its bytes; the name alone is what they mean"""


def run(op, *inputs: torch.Tensor) -> torch.Tensor:
    (out,) = op.reference(inputs, NO_STEP)
    return out


ELEVEN = RouterSpec(11, 3)


@dataclass(frozen=True)
class Shape:
    """One mixture; sizes divide nothing."""

    hidden: int = 37
    inner: int = 45
    shared: int = 33
    router: RouterSpec = ELEVEN
    limit: float | None = None
    ranks: int = 0
    """0: all experts are here; else the first of so many ranks computes its own"""
    format: str = ""
    """of the stacks of experts; empty: plain"""

    @property
    def experts(self) -> ExpertMap | None:
        return ExpertMap.even(self.router.experts, self.ranks) if self.ranks else None


SHAPES = {
    "softmax": Shape(),
    "sigmoid, bias, groups": Shape(
        router=RouterSpec(16, 4, Scoring.SIGMOID, True, 4, 2, 2, scale=2.446), limit=0.5
    ),
    "sqrt softplus, all chosen": Shape(
        router=RouterSpec(6, 6, Scoring.SQRT_SOFTPLUS, True, renormalise=False, scale=1.5), shared=0
    ),
    "a rank of three": Shape(ranks=3),
}


def block_of(shape: Shape, dtype: DType) -> Block:
    """The stream with a mixture added to it."""
    numerics = Numerics.of(BFLOAT16 if dtype == BFLOAT16 else FLOAT32, dtype)
    scope = Scope(BlockBuilder("layer"), numerics, {})
    x = scope.stream(shape.hidden)
    expert = MlpSpec(shape.inner, Activation.SILU, limit=shape.limit)
    shared = MlpSpec(shape.shared, Activation.SILU, limit=shape.limit) if shape.shared else None
    spec = MoeSpec(shape.router, expert, shared=shared)
    row = scope.apply("mlp.input", Pointwise(arg(0) * 1.0, dtype), x)
    parts = mixture(scope, "mlp", row, spec, experts=shape.experts)
    out = add_residual(scope, "mlp.residual", x, *parts, multiplier=0.26)
    block = scope.builder.build([(STREAM, out)])
    if not shape.format:
        return block
    stacks = [v.name for v in block.values if v.role is Role.WEIGHT and len(v.type.shape) == 3]
    graph = Graph("moe", (block,), (Placement(0, None),))
    return with_formats(graph, dict.fromkeys(stacks, weight_format(shape.format))).blocks[0]


MOST_TOKENS = 513
PLANS = (("decode", 1), ("mixed", 513))
ISA = "avx2"


@dataclass(frozen=True)
class Built:
    """A mixture's kernels, and what its values are called."""

    block: Block
    plans: tuple[Plan, ...]
    layouts: dict[str, str]
    fields: dict[str, int]
    words: int
    library: KernelLibrary

    def run(self, plan: Plan, outside: dict[str, torch.Tensor], threads: int = 2) -> torch.Tensor:
        """The block's result, kernel after kernel."""
        tokens = len(outside["x"])
        held = {
            name: outside.get(GIVEN + name, laid_out(t, self.layouts.get(name, "rows")))
            for name, t in outside.items()
        }
        args = torch.zeros(self.words, dtype=torch.int32)
        args[0], args[1] = tokens, 1
        args[self.fields["row_query_start"] + 1] = tokens
        args[self.fields["row_seq_len"]] = tokens
        args[self.fields["block_table.full_0"] : self.fields["logit_token"]] = 1
        self.library.set_threads(threads)
        for launch in plan.launches[:-1]:
            operands: list[torch.Tensor] = []
            for name in launch.kernel.signature:
                if name == SCRATCH:
                    operands.append(torch.full((2 << 20,), 0xFF, dtype=torch.uint8))
                    continue
                if name not in held:
                    type_ = self.block.value[name].type
                    shape = [tokens if d is Dim.T else d for d in type_.shape]
                    kind = getattr(torch, type_.dtype.torch)
                    held[name] = torch.full(shape, -7 if kind == torch.int32 else NAN, dtype=kind)
                operands.append(held[name])
            self.library.run(launch.kernel.name, 0, args, operands)
        return held[dict(self.block.results)[STREAM]]


def end() -> Block:
    """A block behind: what a last block leaves goes to the runtime."""
    builder = BlockBuilder("end")
    x = builder.declare(STREAM, Type((Dim.T, 1), FLOAT32), Role.STREAM)
    return builder.build([("logits", builder.apply("end", Pointwise(arg(0) * 1.0, FLOAT32), x))])


@cache
def built(shape: Shape, dtype: DType, fusion: bool = True) -> Built:
    block = block_of(shape, dtype)
    device = parse_target("cpu")
    unused = CacheSpec(1, 2, None, FLOAT32)  # a step without any is no step
    graph = Graph("moe", (block, end()), (Placement(0, None), Placement(1, None)), ((0, unused),))
    planner = Planner(graph, device, device.target, catalogue(device), fusion)
    plans = tuple(planner.plan(phase, size) for phase, size in PLANS)
    program = cpp_program(plans, 8, MOST_TOKENS)
    store = Store()
    with store.session():
        sources = [CppSource(path, text) for path, text in sorted(program.units.items())]
        (made,) = compile_cpp(sources, isas=[ISA], store=store, headers=program.headers, jobs=2)
        library = KernelLibrary(made.path, ISA)
    for buffer, shape, kind in (
        ("cache", (2, program.cache.page_bytes), torch.uint8),
        ("last_sampled", (4,), torch.int32),
        ("logits", (MOST_TOKENS, 8), torch.float32),
        ("sampled", (MOST_TOKENS,), torch.int32),
    ):
        library.bind(buffer, torch.zeros(shape, dtype=kind))
    layouts = {w.name: w.layout for w in program.weights}
    fields = {f.name: f.offset for f in program.args.fields}
    return Built(block, plans, layouts, fields, program.args.words, library)


def operands(built: Built, shape: Shape, tokens: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights and rows of different size; logits are far enough apart to be no coin."""
    made = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {}
    for value in built.block.values:
        if value.role is Role.WEIGHT:
            sizes = tuple(d for d in value.type.shape if isinstance(d, int))
            if isinstance(value.type.dtype, WeightFormat):
                random = np.random.default_rng(seed + len(found))
                layout = built.layouts.get(value.name, "rows")
                meant, given = random_packed(value.type.dtype, sizes, layout, random)
                found[value.name] = torch.from_numpy(meant)
                found[GIVEN + value.name] = torch.from_numpy(given)
                continue
            kind = getattr(torch, value.type.dtype.torch)
            scale = sizes[-1] ** -0.5 if len(sizes) > 1 else 0.3
            found[value.name] = (torch.randn(sizes, generator=made) * scale).to(kind)
    if shape.experts:
        found["mlp.map"] = torch.tensor(shape.experts.local(0), dtype=torch.int32)
    rows = torch.randn(tokens, shape.hidden, generator=made)
    found["x"] = rows * torch.tensor([0.25, 1.0, 4.0]).repeat(tokens // 3 + 1)[:tokens, None]
    return found


def clear(built: Built, given: dict[str, torch.Tensor], shape: Shape) -> torch.Tensor:
    """Rows whose choice no rounding can change."""
    exact = {n: t.double() if t.is_floating_point() else t.long() for n, t in given.items()}
    values = evaluate_bounded(built.block, exact, NO_STEP)
    logits = values["mlp.router"].value
    bias = [given["mlp.router.bias"].double()] if shape.router.bias else []
    r = shape.router
    op = ChooseExperts(r.top_k, r.scoring.value, r.groups, r.kept_groups, r.group_top)
    near = torch.ones(len(logits), dtype=torch.bool)
    for seed in range(4):
        noise = 1e-5 * torch.randn(
            logits.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        moved = run(op, logits + noise * logits.abs().amax(-1, keepdim=True), *bias)
        near &= (moved == run(op, logits, *bias)).all(-1)
    return near


def wrong(
    built: Built,
    given: dict[str, torch.Tensor],
    found: torch.Tensor,
    shape: Shape,
    every: bool = False,
    arithmetic: Arithmetic = AS_WRITTEN,
) -> int:
    """Elements outside their bound, of rows whose choice is clear, or of `every` row."""
    exact = {n: t.double() if t.is_floating_point() else t.long() for n, t in given.items()}
    values = evaluate_bounded(built.block, exact, NO_STEP, arithmetic)
    want = values[dict(built.block.results)[STREAM]]
    sure = torch.ones(len(found), dtype=torch.bool) if every else clear(built, given, shape)
    assert sure.float().mean() > 0.9
    inside = (found.double() - want.value).abs() <= want.error
    return int((~inside)[sure].sum())
