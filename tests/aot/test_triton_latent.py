"""Generated latent attention, interpreted: inserts, heads' products, parts, prompts, padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
from gpu_trials import Tiny, architecture_with, tiny
from scan_trials import Row, ScanTrial, layer_of, region_kernel

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.planner.plan import SCRATCH, Kernel

BOUND = {FLOAT32: 1e-5, BFLOAT16: 0.01}
"""of the largest number: sums in another order, results and weights of a softmax rounded to 2⁻⁹"""
DECODE = (Row(0, 1), Row(5, 1), Row(9, 1, padding=True), Row(70, 1), Row(130, 1))
PROMPT = (Row(0, 9), Row(3, 1), Row(0, 2), Row(5, 4, padding=True), Row(60, 20))
PARTS = {"tokens": 32, "heads": 16, "splits": 1, "least": 32, "stages": 2, "warps": 4}


@cache
def model(dtype: DType) -> Tiny:
    return tiny(architecture_with("latent_attention"), dtype)


def kernel_of(dtype: DType, ops: tuple[str, ...], family: str, phase: str) -> Kernel:
    return region_kernel(model(dtype), model(dtype).block("layer_latent"), ops, family, phase)


def check(dtype: DType, kernel: Kernel, choice: Mapping[str, int], rows: tuple[Row, ...]) -> None:
    layer = layer_of(model(dtype), "layer_latent")
    errors = ScanTrial(model(dtype), kernel, choice, rows, 40, layer).errors()
    assert errors and max(errors.values()) <= BOUND[dtype], errors


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("phase, rows", [("decode", DECODE), ("mixed", PROMPT)], ids=str)
def test_rows_go_to_their_pages(dtype: DType, phase: str, rows: tuple[Row, ...]) -> None:
    for ops in (("attn.cache",), ("attn.latent_norm.stat", "attn.latent_norm", "attn.cache")):
        kernel = kernel_of(dtype, ops, "rows", phase)
        check(dtype, kernel, {"rows": 4, "width": 32, "warps": 1}, rows)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("op", ["attn.key_up", "attn.value_up"])
def test_products_of_heads(dtype: DType, op: str) -> None:
    choice = {"rows": 16, "outputs": 16, "depth": 16, "stages": 2, "warps": 1}
    for phase, rows in (("decode", DECODE), ("mixed", PROMPT)):
        check(dtype, kernel_of(dtype, (op,), "head_linear", phase), choice, rows)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("splits", [1, 3])
def test_decode(dtype: DType, splits: int) -> None:
    """Requests of one part, of some and of all of them; the second launch merges in chunks."""
    kernel = kernel_of(dtype, ("attn",), "latent_decode", "decode")
    kernel = replace(kernel, signature=(*kernel.signature, SCRATCH))
    check(dtype, kernel, {**PARTS, "splits": splits}, DECODE)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_prompts(dtype: DType) -> None:
    kernel = kernel_of(dtype, ("attn",), "latent_prefill", "mixed")
    check(dtype, kernel, {"rows": 16, "tokens": 16, "stages": 2, "warps": 2}, PROMPT)
