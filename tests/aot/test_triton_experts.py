"""Routed experts under Triton's interpreter: both ways, every scoring, ties, NaN, padding."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from moe_blocks import GIVEN, NAN, NO_STEP, SHAPES, Shape, block_of, end, operands, wrong

from kernelgen.codegen.cuda.launches import Operand, Parameter, Pointer
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.step_args import args_layout
from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.codegen.triton.kernels import StepLayout
from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Block, Graph, Placement
from kernelgen.ir.types import Dim
from kernelgen.lower.scope import STREAM
from kernelgen.planner.caches import cache_schema
from kernelgen.planner.plan import SCRATCH, Plan
from kernelgen.planner.planner import Planner
from kernelgen.spec.model import CacheSpec
from kernelgen.verify.bounded import TENSOR_CORES
from kernelgen.verify.bounds import evaluate_bounded
from kernelgen.verify.interpreter import interpret

PLANS = {"one": 1, "decode": 2, "few": 12, "mixed": 12}
PHASES = {"one": "decode", "few": "decode"}
"""of plans that are not called by it"""
OUT = {
    "few": ("experts_pairs", "experts_sorted"),
    "mixed": ("experts_pairs", "experts_grouped"),
}
"""ways that a plan is not to take"""
ELEMENTS = {"*fp32": torch.float32, "*i32": torch.int32, "*u8": torch.uint8}


class Planned:
    """A mixture's launches; see `test_moe.Built`."""

    def __init__(self, shape: Shape, dtype: DType = FLOAT32, out: tuple[str, ...] = ()) -> None:
        self.block: Block = block_of(shape, dtype)
        self.layouts: dict[str, str] = {}
        device = parse_target("sm_90")
        schema = cache_schema(((0, CacheSpec(1, 2, None, FLOAT32)),))
        self.layout = StepLayout(schema, args_layout(schema, 64, 64, 64))
        graph = Graph("moe", (self.block, end()), (Placement(0, None), Placement(1, None)))
        self.plans = {}
        for name, size in PLANS.items():  # sizes this small would all go pair by pair
            left = [f for f in catalogue(device) if f.name not in (*OUT.get(name, ()), *out)]
            planner = Planner(graph, device, device.target, left)
            self.plans[name] = planner.plan(PHASES.get(name, name), size)

    def run(self, plan: Plan, outside: dict[str, torch.Tensor]) -> torch.Tensor:
        """The block's result; buffers have all rows of the plan, those behind the step's NaN."""
        tokens = len(outside["x"])
        args = torch.zeros(self.layout.args.words, dtype=torch.int32)
        args[0], args[1] = tokens, tokens
        held: dict[str, Any] = {n: outside.get(GIVEN + n, t) for n, t in outside.items()}
        padded = torch.full((plan.size, outside["x"].shape[1]), NAN)
        padded[:tokens] = outside["x"]
        held["x"] = padded
        for launch in plan.launches[:-1]:
            kernel = launch.kernel
            scratch = torch.full((max(64, launch.price.scratch_bytes),), 0xFF, dtype=torch.uint8)
            held |= {SCRATCH: scratch, "counters": torch.zeros(256, dtype=torch.int32)}
            for name in kernel.signature:
                if name not in held:
                    type_ = self.block.value[name].type
                    sizes = [plan.size if d is Dim.T else d for d in type_.shape]
                    kind = getattr(torch, type_.dtype.torch)
                    held[name] = torch.full(sizes, NAN if kind.is_floating_point else 1 << 30)
                    held[name] = held[name].to(kind)
            made = gpu_kernel(kernel, launch.price.choice, self.layout)

            for launched in made.passes:
                values = [_value(p, kernel.signature, held, args) for p in launched.parameters]
                interpret(launched.unit, launched.grid(kernel.launch_sizes(plan.sizes)), values)
        result = held[dict(self.block.results)[STREAM]]
        assert bool(result[tokens:].isnan().all()), "rows behind the step's were written"
        return result[:tokens]


def _value(
    one: Parameter, names: tuple[str, ...], held: dict[str, Any], args: torch.Tensor
) -> torch.Tensor:
    if isinstance(one, Operand):
        found: torch.Tensor = held[names[one.index]]
        return found
    assert one is Pointer.ARGS, one
    return args


@cache
def planned(shape: Shape) -> Planned:
    return Planned(shape)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("phase", "tokens"), [("one", 1), ("decode", 2), ("decode", 1), ("few", 11), ("mixed", 11)]
)
def test_kernels_are_right(name: str, phase: str, tokens: int) -> None:
    made, shape = planned(SHAPES[name]), SHAPES[name]
    given = operands(made, shape, tokens, seed=3)
    assert wrong(made, given, made.run(made.plans[phase], given), shape) == 0


def test_all_ways_are_planned() -> None:
    """One token: three launches from the router to the sum; a prompt by expert."""
    plans = planned(SHAPES["softmax"]).plans
    ops = [set(k.ops) for k in plans["one"].kernels[:-1]]
    assert len(ops) == 3
    assert {"mlp.input", "mlp.router", "mlp.shared.act"} <= ops[0]
    assert {"mlp.router.choose", "mlp.router.weigh", "mlp.experts.act"} <= ops[1]
    assert {"mlp.experts.down", "mlp.shared.down", "mlp.residual"} <= ops[2]
    assert "experts_sorted" in {k.match.family.name for k in plans["mixed"].kernels}
    assert "experts_grouped" in {k.match.family.name for k in plans["few"].kernels}
    groups = planned(SHAPES["a rank of three"]).plans["one"]
    assert "route" in {k.match.family.name for k in groups.kernels}


FORMATS = ("mxfp4", "nvfp4", "fp8_channel", "fp8_block128", "int4_g32", "int8_g64_zp")


@pytest.mark.row("R-068")
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("phase", "tokens"), [("one", 1), ("few", 11), ("mixed", 11)])
def test_quantised_experts(kind: str, phase: str, tokens: int) -> None:
    inner = 45 if kind.startswith("fp8") else 64
    shape = Shape(hidden=192 if inner == 64 else 150, inner=inner, shared=0, format=kind)
    made = planned(shape)
    given = operands(made, shape, tokens, seed=3)
    assert wrong(made, given, made.run(made.plans[phase], given), shape) == 0


@pytest.mark.row("R-068")
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("phase", "tokens"), [("one", 1), ("few", 11)])
def test_quantised_experts_on_tensor_cores(kind: str, phase: str, tokens: int) -> None:
    """Codes that become numbers in the registers that they were loaded to, choice and sum beside
    them for one token."""
    shape = Shape(hidden=192, inner=64, shared=0, format=kind)
    made = Planned(
        shape, BFLOAT16, out=("experts_pairs", "experts_grouped", "experts_sorted", "ring")
    )
    families = [k.match.family.name for k in made.plans[phase].kernels]
    assert families.count("experts_packed") == 2
    given = operands(made, shape, tokens, seed=3)
    arithmetic = {"arithmetic": TENSOR_CORES}
    assert wrong(made, given, made.run(made.plans[phase], given), shape, **arithmetic) == 0


@pytest.mark.parametrize("phase", ["decode", "mixed"])
def test_equal_logits_and_a_token_that_is_no_number(phase: str) -> None:
    made, shape = planned(SHAPES["softmax"]), SHAPES["softmax"]
    given = operands(made, shape, 2)
    given["mlp.router.weight"].zero_()
    exact = {n: t.double() for n, t in given.items()}
    want = evaluate_bounded(made.block, exact, NO_STEP)
    assert want["mlp.router.choose"].value.tolist() == [[0, 1, 2]] * 2
    result = want[dict(made.block.results)[STREAM]]
    found = made.run(made.plans[phase], given)
    assert bool(((found.double() - result.value).abs() <= result.error).all())
    given["x"][1, 0] = NAN
    spoiled = made.run(made.plans[phase], given)
    assert spoiled[1].isnan().all() and torch.equal(spoiled[0], found[0])


@pytest.mark.parametrize("phase", PLANS)
def test_no_tokens(phase: str) -> None:
    made = planned(SHAPES["softmax"])
    given = operands(made, SHAPES["softmax"], 1)
    assert len(made.run(made.plans[phase], given | {"x": given["x"][:0]})) == 0


def test_one_token_with_equal_logits_and_one_that_is_no_number() -> None:
    """The choice inside the kernel of the products takes the lower experts, and NaN stays NaN."""
    shape = SHAPES["softmax"]
    made = planned(shape)
    given = operands(made, shape, 1)
    given["mlp.router.weight"].zero_()
    assert wrong(made, given, made.run(made.plans["one"], given), shape, every=True) == 0
    given["x"][0, 3] = NAN
    assert made.run(made.plans["one"], given).isnan().all()


@pytest.mark.parametrize("phase", ["decode", "mixed"])
def test_all_tokens_to_the_same_experts(phase: str) -> None:
    """A router that prefers three experts whatever the row: the others are never read."""
    shape = SHAPES["softmax"]
    made, tokens = planned(shape), PLANS[phase] - 1
    given = operands(made, shape, tokens)
    given["x"] = given["x"].abs() + 0.1
    given["mlp.router.weight"] = torch.linspace(-1, 1, 11)[:, None].expand(-1, 37).contiguous()
    for part in ("gate", "up", "down"):
        given[f"mlp.experts.{part}.weight"][:8] = NAN
    assert wrong(made, given, made.run(made.plans[phase], given), shape, every=True) == 0
