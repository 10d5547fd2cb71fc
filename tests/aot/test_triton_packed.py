"""Products with packed matrices under Triton's interpreter against dequantise-then-float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from gpu_trials import Tiny, Trial, architectures, tiny

from kernelgen.codegen.families.row_prep import row_prep
from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.formats import weight_format
from kernelgen.ir.reformat import product_weights, with_formats
from kernelgen.verify.scenario import scenarios

FORMATS = [
    "fp8_tensor", "fp8_channel", "fp8_block128", "mxfp8", "mxfp4", "nvfp4", "int4_g32",
    "int4_g128_f16_zp", "int8_g64", "int3_g32_f16", "int8_channel", "int6_g32_zp",
]  # fmt: skip
KINDS = {
    "o": ("attn.o", "attn.residual"),
    "gate_up+norm": ("mlp_norm.stat", "mlp_norm", "mlp.gate", "mlp.up", "mlp.act"),
    "qkv+norm": ("attn_norm.stat", "attn_norm", "attn.q", "attn.k", "attn.v"),
}
# Each weight may be rounded to bfloat16 once it is scaled, and so may rows before their scale:
# 2⁻⁹ of a term each, relative to the largest result of a row.
SLACK = {BFLOAT16: 2.0**-6, FLOAT32: 0.0}


@cache
def _architecture(ragged: bool) -> str:
    """One with gated MLPs whose tiny model's rows do (not) fill chunks of 32."""
    for name in architectures():
        model = tiny(name, BFLOAT16)
        values = model.graph.blocks[model.block("layer")].value
        gate = values.get("mlp.gate.weight")
        if gate is not None and bool(gate.type.row_width % 32) == ragged:
            return name
    raise AssertionError("no architecture is of this kind")


@cache
def in_format(architecture: str, name: str, activation: DType) -> Tiny:
    """A tiny model with every product in one format."""
    model = tiny(architecture, activation)
    kind = weight_format(name)
    chosen = {w: kind for w in product_weights(model.graph) if w.startswith("layers.")}
    return replace(model, graph=with_formats(model.graph, chosen), searches={})


@pytest.mark.parametrize("kind", ["o", "gate_up+norm", "qkv+norm"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("depth", [64, 256])
def test_one_row(depth: int, name: str, kind: str) -> None:
    model = in_format(_architecture(ragged=depth == 64), name, BFLOAT16)
    block = model.block("layer")
    known = {n.name for n in model.graph.blocks[block].nodes}
    ops = [n for op in KINDS[kind] for n in (op, f"{op}.add_bias") if n in known]
    kernel = model.kernel(block, ops, "gemv_packed")
    scenario = min(scenarios("decode", model.positions, 64), key=lambda s: s.tokens)
    tile = {"outputs": 16, "depth": depth, "warps": 4}
    slack = SLACK[BFLOAT16] if "norm" in kind else 0.0  # rows are not rounded before their scale
    assert scenario.tokens == 1
    assert not Trial(model, kernel, tile, scenario, 1, slack=slack).problems()


@pytest.mark.parametrize(("kind", "tokens"), [("o", 1), ("gate_up+norm", 7), ("qkv+norm", 33)])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("activation", [BFLOAT16, FLOAT32], ids=str)
def test_packed_product(activation: DType, name: str, kind: str, tokens: int) -> None:
    if activation == FLOAT32 and kind != "o":
        pytest.skip("one shape with exact products")
    model = in_format(_architecture(ragged=tokens == 7), name, activation)
    block = model.block("layer")
    known = {n.name for n in model.graph.blocks[block].nodes}
    ops = [n for op in KINDS[kind] for n in (op, f"{op}.add_bias") if n in known]
    kernel = model.kernel(block, ops, "packed")
    scenario = min(scenarios("decode", model.positions, 64), key=lambda s: abs(s.tokens - tokens))
    tile = {
        "rows": 16 if tokens < 16 else 64,
        "outputs": 32,
        "depth": 64 if tokens == 1 else 128,
        "stages": 2,
        "warps": 4,
    }
    assert row_prep(kernel.match.region, kernel.match.roles) is not None or kind == "o"
    trial = Trial(model, kernel, tile, scenario, scenario.tokens + 3, slack=SLACK[activation])
    assert not trial.problems()


@pytest.mark.parametrize(("kind", "tokens"), [("o", 1), ("gate_up+norm", 7), ("qkv+norm", 16)])
@pytest.mark.parametrize("name", FORMATS)
def test_few_rows(name: str, kind: str, tokens: int) -> None:
    model = in_format(_architecture(ragged=tokens == 7), name, BFLOAT16)
    block = model.block("layer")
    known = {n.name for n in model.graph.blocks[block].nodes}
    ops = [n for op in KINDS[kind] for n in (op, f"{op}.add_bias") if n in known]
    kernel = model.kernel(block, ops, "sliced_packed")
    scenario = min(
        (s for s in scenarios("decode", model.positions, 64) if s.tokens <= 16),
        key=lambda s: abs(s.tokens - tokens),
    )
    tile = {
        "rows": 8 if scenario.tokens < 8 else 16,
        "outputs": 16 if tokens == 1 else 32,
        "steps": 2 if tokens == 7 else 1,
        "warps": {1: 1, 7: 2, 16: 4}[tokens],
        "ahead": {1: 1, 7: 2, 16: 3}[tokens],
    }
    trial = Trial(model, kernel, tile, scenario, tile["rows"], slack=SLACK[BFLOAT16])
    assert not trial.problems()


@pytest.mark.parametrize("ahead", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["int4_g32_f16_zp", "nvfp4", "fp8_block128"])
def test_steps_of_few_rows_in_a_loop_and_behind_it(name: str, ahead: int) -> None:
    """A row of 3 to 5 and more steps: rounds of the loop, the last ones, and what is left over."""
    model = in_format(_architecture(ragged=False), name, BFLOAT16)
    block = model.block("layer")
    kernel = model.kernel(block, ["mlp.down"], "sliced_packed")
    scenario = min(scenarios("decode", model.positions, 64), key=lambda s: s.tokens)
    tile = {"rows": 8, "outputs": 16, "steps": 1, "warps": 1, "ahead": ahead}
    assert not Trial(model, kernel, tile, scenario, 8, slack=SLACK[BFLOAT16]).problems()
