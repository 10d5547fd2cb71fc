"""The time model of GPU kernels against what one H200 measured.

All figures: 2026-11-30, one NVIDIA H200, torch 2.11, Triton 3.6, driver of CUDA 13.0. "In a step"
means in a captured chain with dependent launch; "alone" means between events, L2 flushed before.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from kernelgen.codegen.families.row_prep import RowPrep
from kernelgen.codegen.families.triton_decode import DecodeProblem, decode
from kernelgen.codegen.families.triton_gemm import gemm
from kernelgen.codegen.families.triton_gemm_tma import TmaTile, gemm_tma
from kernelgen.codegen.families.triton_gemv import GemvTile, gemv
from kernelgen.codegen.families.triton_prefill import PrefillProblem, PrefillTile, prefill
from kernelgen.codegen.families.triton_product import Product
from kernelgen.codegen.families.triton_rows import RowsProblem, rows
from kernelgen.codegen.families.triton_skinny import skinny
from kernelgen.codegen.families.triton_time import COLD_US
from kernelgen.hw import parse_target
from kernelgen.planner.family import Refusal

H200 = parse_target("sm_90:h200")

# rows of weights, K, best measured µs in a step
ONE_ROW = [
    (4096, 1024, 3.3),
    (1024, 2048, 2.2),
    (6144, 1024, 4.3),
    (1024, 3072, 3.2),
    (151936, 1024, 73),
    (6144, 4096, 12.7),
    (4096, 4096, 8.9),
    (24576, 4096, 44.9),
    (4096, 12288, 25.1),
    (151936, 4096, 271),
]
# the same with an RMS norm as prologue: best of 12 tiles, two passes or one
ONE_ROW_NORM = [
    (1024, 3072, 3.29),
    (4096, 1024, 3.28),
    (4096, 4096, 9.89),
    (4096, 12288, 26.85),
    (6144, 1024, 4.08),
    (6144, 4096, 13.61),
    (24576, 4096, 48.95),
]
# rows, rows of weights, K: best of 8 tiles × 1, 2, 4, 8 splits
FEW_ROWS = [
    (8, 1024, 3072, 4.78),
    (8, 4096, 1024, 4.41),
    (8, 4096, 4096, 10.94),
    (8, 4096, 12288, 27.49),
    (8, 6144, 4096, 15.72),
    (8, 24576, 4096, 48.65),
    (32, 1024, 3072, 5.7),
    (32, 4096, 1024, 4.75),
    (32, 4096, 4096, 11.65),
    (32, 4096, 12288, 28.73),
    (32, 6144, 4096, 16.38),
    (32, 24576, 4096, 50.31),
    (64, 1024, 3072, 6.7),
    (64, 4096, 1024, 4.75),
    (64, 4096, 4096, 12.37),
    (64, 4096, 12288, 30.05),
    (64, 6144, 4096, 16.49),
    (64, 24576, 4096, 55.89),
]
# 32 query and 8 cache heads of 128: requests, entries, µs alone of the best public kernel
ATTENTION_ALONE = [
    (1, 1024, 11.4),
    (8, 1024, 21.9),
    (32, 1024, 45.8),
    (64, 1024, 76.7),
    (1, 8192, 22.3),
    (8, 8192, 78),
    (64, 8192, 483),
    (1, 65536, 83),
]
# the same in a step, a plain kernel with norm, insert and splits
ATTENTION_IN_A_STEP = [(1, 192, 5.48), (8, 192, 7.19), (1, 1024, 8.52), (8, 1024, 15.49)]
# rows, width, values moved for each element of 2 bytes, reductions, µs alone
ROWS_ALONE = [
    (1, 4096, 4, 1, 6.0),
    (64, 4096, 4, 1, 6.3),
    (1024, 4096, 4, 1, 14.0),
    (16384, 4096, 4, 1, 136),
    (1, 12288, 3, 0, 5.3),
    (64, 12288, 3, 0, 6.8),
    (4096, 12288, 3, 0, 76),
]
RMS_NORM = RowPrep(ops=2, passes=1, statistics=1, deferred=True)


def problem(t: int, n: int, k: int, prep: RowPrep | None = None) -> Product:
    """One bf16 matrix `[n, k]` times `t` rows."""
    moved = 2 * (n * k + t * (n + k))
    return Product(t, k, ((n, 1),), 16, 16, 16, "bfloat16", prep, 2, moved, 2 * t * n * k)


def in_a_step(found: object) -> float:
    """Predicted µs, the boundary included."""
    assert not isinstance(found, Refusal)
    return H200.boundary_us + float(found.timing.us)  # type: ignore[attr-defined]


def errors(pairs: list[tuple[float, float]]) -> list[float]:
    return [model / measured - 1 for model, measured in pairs]


def test_one_row_products() -> None:
    """The published table: every row within 20%, half of them within 8%."""
    found = errors([(in_a_step(gemv(problem(1, n, k), H200)), us) for n, k, us in ONE_ROW])
    assert max(map(abs, found)) < 0.20
    assert statistics.median(map(abs, found)) < 0.08


def test_one_row_products_with_a_norm() -> None:
    found = errors(
        [(in_a_step(gemv(problem(1, n, k, RMS_NORM), H200)), us) for n, k, us in ONE_ROW_NORM]
    )
    assert max(map(abs, found)) < 0.25
    assert statistics.median(map(abs, found)) < 0.10


def test_tiles_of_one_row_products() -> None:
    """Measured tiles of five models (2026-12-01, weights cold, Triton 3.6): [outputs, depth, warps,
    blocks, µs]. What the model likes best of them costs little more than the best of them."""
    off, regret = [], []
    for kernel in json.loads((Path(__file__).parent / "one_row_tiles.json").read_text()):
        k, columns, matrices = kernel["k"], kernel["columns"], kernel["matrices"]
        row = RMS_NORM if kernel["norm"] else None
        flops = 2 * k * columns * matrices
        one = Product(
            1, k, ((columns, matrices),), 16, 16, 16, "bfloat16", row, 2, kernel["bytes"], flops
        )
        found = [
            (H200.boundary_us + GemvTile(*tile).time(one, H200).us, us)
            for *tile, us in kernel["tiles"]
        ]
        off += [abs(model / us - 1) for model, us in found]
        regret.append(min(found)[1] / min(us for _, us in found) - 1)
    assert statistics.mean(off) < 0.13
    assert statistics.mean(regret) < 0.08 and max(regret) < 0.45


def test_few_row_products() -> None:
    found = errors([(in_a_step(skinny(problem(t, n, k), H200)), us) for t, n, k, us in FEW_ROWS])
    assert max(map(abs, found)) < 0.25
    assert statistics.median(map(abs, found)) < 0.15


def test_a_norm_costs_few_rows_more_than_a_kernel_of_its_own() -> None:
    """Measured at 64 rows: 17.3 → 31.1 µs fused, 1.5 µs alone; at one row 13.2 → 13.6."""
    fused, bare = (
        in_a_step(skinny(problem(64, 6144, 4096, prep), H200)) for prep in (RMS_NORM, None)
    )
    norm = H200.boundary_us + 0.5
    assert fused - bare > norm
    one_fused, one_bare = (
        in_a_step(gemv(problem(1, 6144, 4096, prep), H200)) for prep in (RMS_NORM, None)
    )
    assert one_fused - one_bare < norm


@pytest.mark.parametrize(
    ("t", "n", "k", "us"),
    [
        (16384, 6144, 4096, 1179),
        (16384, 4096, 4096, 790),
        (16384, 24576, 4096, 4729),
        (16384, 4096, 12288, 2387),
    ],
)
def test_many_row_products_reach_what_the_library_does(t: int, n: int, k: int, us: float) -> None:
    assert in_a_step(gemm(problem(t, n, k), H200)) == pytest.approx(us, rel=0.15)


def attention(b: int, n: int) -> DecodeProblem:
    moved = b * n * 2 * 8 * 128 * 2 + 2 * b * 32 * 128 * 2
    return DecodeProblem(b, 32, 8, 128, 16, n, False, 1, 0, True, moved, b * n * 32 * 4 * 128)


def test_decode_attention_alone() -> None:
    """Alone a kernel starts cold and hides nothing; public ones merge splits in a second kernel."""
    found = []
    for b, n, us in ATTENTION_ALONE:
        model = in_a_step(decode(attention(b, n), H200)) - H200.boundary_us
        found.append((model + H200.launch_us + 2 * COLD_US, us))
    assert max(map(abs, errors(found))) < 0.25


def test_decode_attention_in_a_step() -> None:
    found = [(in_a_step(decode(attention(b, n), H200)), us) for b, n, us in ATTENTION_IN_A_STEP]
    assert max(map(abs, errors(found))) < 0.25


PROMPT_ATTENTION = [
    ((128, 64, 2, 4), 1280, 765),
    ((128, 128, 2, 8), 1434, 872),
    ((128, 64, 3, 8), 1451, 893),
    ((64, 64, 2, 4), 1610, 917),
    ((128, 64, 2, 8), 1681, 962),
]
"""rows, tokens, stages, warps: µs for one prompt of 8,192, for eight of 2,048; causal"""


def prompts(count: int, length: int) -> PrefillProblem:
    """Prompts of 32 heads of 128 on 8 cache heads."""
    tokens, pairs = count * length, count * length * (length + 1) // 2
    sizes = (4 * tokens * 4096, pairs * 32 * 512)
    return PrefillProblem(tokens, 32, 8, 128, 16, pairs, length, False, True, True, *sizes)


def test_prompt_attention() -> None:
    """The tile that measured best is the model's best too; the others are no further off."""
    one, eight = prompts(1, 8192), prompts(8, 2048)
    found = []
    for tile, us_of_one, us_of_eight in PROMPT_ATTENTION:
        found.append((PrefillTile(*tile).time(one, H200).us, us_of_one))
        found.append((PrefillTile(*tile).time(eight, H200).us, us_of_eight))
    assert max(map(abs, errors(found))) < 0.15
    for problem_ in (one, eight):
        chosen = prefill(problem_, H200)
        assert not isinstance(chosen, Refusal)
        assert chosen.tile == PrefillTile(*PROMPT_ATTENTION[0][0])


def test_a_block_may_spill_only_where_that_was_measured() -> None:
    tile = PrefillTile(128, 64, 2, 4)
    assert tile.spills(prompts(1, 512)) and not tile.problems(prompts(1, 512), H200)
    elsewhere = replace(prompts(1, 512), wide=False)
    assert "about 323 registers a thread" in tile.problems(elsewhere, H200)[0]
    assert PrefillTile(128, 64, 3, 4).problems(prompts(1, 512), H200)  # more of them than measured
    assert not PrefillTile(128, 64, 2, 8).spills(prompts(1, 512))


PROMPT_PRODUCTS = [
    # rows: columns and matrices, K, bytes of each result besides its operands
    ("o + residual", 4096, ((4096, 1),), 8, {16384: 903, 8192: 465, 2048: 122}),
    ("gate + up, act", 4096, ((12288, 2),), 2, {16384: 4397, 8192: 2469, 2048: 659}),
    ("down + residual", 12288, ((4096, 1),), 8, {16384: 2415, 8192: 1243, 2048: 319}),
    ("qkv", 4096, ((4096, 1), (1024, 1), (1024, 1)), 2, {16384: 1082, 8192: 610, 2048: 159}),
]
"""128 × 256 × 64 by descriptors, 4 stages, 8 warps"""


def test_prompt_products_by_descriptor() -> None:
    found = []
    for name, k, groups, each, measured in PROMPT_PRODUCTS:
        columns = sum(n for n, _ in groups)
        matrices = sum(n * m for n, m in groups)
        for count, us in measured.items():
            moved = 2 * k * (count + matrices) + count * columns * each
            flops = 2 * count * k * matrices
            shape = Product(count, k, groups, 16, 16, 16, "bfloat16", None, 4, moved, flops)
            chosen = gemm_tma(shape, H200)
            assert not isinstance(chosen, Refusal)
            wide = 128 if len(groups) == 1 and groups[0][1] == 2 else 256
            assert chosen.tile == TmaTile(128, wide, 64, 4, 8, 8), (name, count)
            found.append((chosen.timing.us, us))
    assert max(map(abs, errors(found))) < 0.15


def test_row_kernels_alone() -> None:
    found = []
    for t, width, values, depth, us in ROWS_ALONE:
        moved = t * width * values * 2
        shape = RowsProblem(t, width, depth, False, moved, t * width * 4)
        model = in_a_step(rows(shape, H200)) - H200.boundary_us
        found.append((model + H200.launch_us + COLD_US, us))
    assert max(map(abs, errors(found))) < 0.20


def test_row_kernels_in_a_step() -> None:
    """RMS norm of 4096 in a chain: 1.29 µs for one row, 1.53 for 64."""
    for t, us in ((1, 1.29), (64, 1.53)):
        shape = RowsProblem(t, 4096, 1, False, t * 4096 * 4, t * 4096 * 4)
        assert in_a_step(rows(shape, H200)) == pytest.approx(us, abs=0.6)


def test_a_device_without_dependent_launch_waits_longer() -> None:
    a100 = parse_target("sm_80")
    plain = replace(H200, features=H200.features - {"pdl"})
    found = gemv(problem(1, 4096, 1024), plain)
    assert not isinstance(found, Refusal)
    assert plain.boundary_plain_us + found.timing.us > in_a_step(gemv(problem(1, 4096, 1024), H200))
    assert a100.boundary_us == a100.boundary_plain_us
