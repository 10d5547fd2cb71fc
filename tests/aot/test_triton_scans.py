"""Generated scans, interpreted: convolutions, the delta rule in decode and over prompts, states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
from gpu_trials import Tiny, architecture_with, tiny
from scan_trials import Row, ScanTrial, layer_of, region_kernel

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.planner.family import Refusal
from kernelgen.planner.plan import SCRATCH, Kernel

# Of the largest number. float32: sums in another order. bfloat16: results are rounded to 2⁻⁹, and
# what is between convolution and norm, or what a chunk leaves for the walk, is rounded before.
EXACT, ROUNDED = 1e-5, 0.02
STEP = {"width": 32, "warps": 4, "blocks": 0}
CHUNKS = {"width": 16, "walkers": 4, "stages": 1, "warps": 4}
CONVS = tuple(f"attn.{part}_{op}" for part in "qkv" for op in ("conv", "silu"))
NORM = ("attn.norm.stat", "attn.norm")
DECODE = (Row(0, 1), Row(5, 1, in_place=True), Row(9, 1, padding=True), Row(7, 1))
PROMPTS = (
    (Row(0, 9), Row(3, 1, in_place=True), Row(0, 2), Row(5, 4, padding=True), Row(60, 20, mark=64)),
    (Row(30, 80, mark=96, in_place=True), Row(10, 60, mark=32), Row(0, 0), Row(7, 1)),
)


def bound(dtype: DType) -> float:
    return EXACT if dtype == FLOAT32 else ROUNDED


@cache
def model(dtype: DType) -> Tiny:
    return tiny(architecture_with("delta_scan"), dtype)


def kernel_of(dtype: DType, ops: tuple[str, ...], family: str, phase: str) -> Kernel:
    return region_kernel(model(dtype), model(dtype).block("layer_delta"), ops, family, phase)


def worst(
    dtype: DType,
    kernel: Kernel,
    choice: Mapping[str, int],
    rows: tuple[Row, ...],
    capacity: int,
    scale: Mapping[str, float],
) -> float:
    layer = layer_of(model(dtype), "layer_delta")
    errors = ScanTrial(model(dtype), kernel, choice, rows, capacity, layer, scale).errors()
    assert errors
    return max(errors.values())


GENTLE = {"bias": 0.5, "rate": 0.5}
HARSH = {"decay_up": 6.0, "bias": 3.0, "rate": 0.01}
"""some keys keep nothing from one token to the next"""


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("ops", [("attn.q_conv",), ("attn.k_conv", "attn.k_silu")], ids="+".join)
def test_short_convolution(dtype: DType, ops: tuple[str, ...]) -> None:
    choice = {"rows": 8, "width": 32, "warps": 1}
    kernel = kernel_of(dtype, ops, "short_conv", "mixed")
    for rows in PROMPTS:
        assert worst(dtype, kernel, choice, rows, 180, GENTLE) <= bound(dtype)
    kernel = kernel_of(dtype, ops, "short_conv", "decode")
    assert worst(dtype, kernel, {**choice, "rows": 4}, DECODE, 6, GENTLE) <= bound(dtype)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize(
    "ops",
    [
        ("attn.scan",),
        ("attn.q_silu", "attn.scan"),
        ("attn.k_conv", "attn.k_silu", "attn.scan", *NORM),
        (*CONVS, "attn.scan", *NORM),
    ],
    ids=lambda ops: str(len(ops)),
)
def test_delta_rule_of_one_token(dtype: DType, ops: tuple[str, ...]) -> None:
    kernel = kernel_of(dtype, ops, "delta_step", "decode")
    assert worst(dtype, kernel, STEP, DECODE, 6, GENTLE) <= bound(dtype)


def test_parts_of_a_head() -> None:
    """Columns of a state have nothing to do with each other, unless a norm sums over them."""
    kernel = kernel_of(FLOAT32, ("attn.scan",), "delta_step", "decode")
    assert worst(FLOAT32, kernel, {**STEP, "width": 16}, DECODE, 6, GENTLE) <= EXACT


@pytest.mark.parametrize(
    "dtype, scale, rows",
    [
        (FLOAT32, GENTLE, PROMPTS[1]),
        (FLOAT32, HARSH, PROMPTS[0]),
        (BFLOAT16, GENTLE, PROMPTS[0]),
        (BFLOAT16, HARSH, PROMPTS[1]),
    ],
    ids=("exact", "exact-harsh", "rounded", "rounded-harsh"),
)
@pytest.mark.filterwarnings("ignore:overflow encountered in matmul")  # above the diagonal, masked
def test_delta_rule_over_prompts(
    dtype: DType, scale: Mapping[str, float], rows: tuple[Row, ...]
) -> None:
    """Chunks that begin and end anywhere, states kept inside them, decays of any size."""
    kernel = kernel_of(dtype, ("attn.scan",), "delta_chunks", "mixed")
    kernel = replace(kernel, signature=(*kernel.signature, SCRATCH))
    assert worst(dtype, kernel, CHUNKS, rows, 180, scale) <= bound(dtype)


def test_what_does_not_fit_into_a_step_is_told() -> None:
    for ops, told in (
        (("attn.scan", "attn.q_silu", "attn.q"), ""),
        (("attn.scan", "attn.decay_up"), ""),
        (("attn.scan", "attn.norm.stat"), "read elsewhere"),
    ):
        found = region_kernel(
            model(FLOAT32), model(FLOAT32).block("layer_delta"), ops, "delta_step", "decode", False
        )
        assert found is None if not told else isinstance(found, Refusal) and told in found.reason
