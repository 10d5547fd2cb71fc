"""Generated attention, interpreted: windows, sinks, splits, chunks, padding, poisoned pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from attention_trials import AttentionTrial, Shape, attention_kernel, layers, steps

from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.families.triton_prefill import prefill_roles
from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.compile.store import Store
from kernelgen.compile.triton import compile_triton
from kernelgen.core.dtypes import FLOAT32
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region
from kernelgen.verify.scenario import Scenario, scenarios

W = 20
DECODE = {"tokens": 32, "splits": 1, "least": 32, "stages": 2, "warps": 4, "cluster": 1}
PREFILL = {"rows": 32, "tokens": 32, "stages": 2, "warps": 1}
SHAPES = (
    Shape(),
    Shape(4, 4, 64, dtype=FLOAT32),
    Shape(3, 1, 32, sinks=True),
    Shape(5, 1, 64, window=W, sinks=True, norm=False, dtype=FLOAT32),
    Shape(8, 1, 128, window=W, norm=False, rope=0),
    Shape(4, 2, 24, rope=16, dtype=FLOAT32),
    Shape(4, 2, 12),
    Shape(4, 2, 64, float8=True),
    Shape(3, 1, 24, sinks=True, float8=True),
    Shape(2, 2, 32, dtype=FLOAT32, float8=True),
)


def _problems(
    shape: Shape, phase: str, scenario: Scenario, choice: dict[str, int], fused: bool = True
) -> list[str]:
    model = layers(shape)
    kernel = attention_kernel(model, phase, fused=fused)
    return AttentionTrial(model, kernel, choice, scenario, scenario.tokens + 2, layer=1).problems()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("splits", [1, 3])
def test_decode(shape: Shape, splits: int) -> None:
    scenario = scenarios("decode", 512, 7)[-1]
    assert not _problems(shape, "decode", scenario, {**DECODE, "splits": splits})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill(shape: Shape) -> None:
    for scenario in scenarios("mixed", 512, 64)[-2:]:
        assert not _problems(shape, "mixed", scenario, PREFILL)


@pytest.mark.parametrize("history", [W - 2, W - 1, W, W + 1, 3 * W])
def test_window_edge(history: int) -> None:
    """The window's last entry is seen, the one before it is not: pages below it hold NaN."""
    shape = Shape(2, 1, 32, window=W, sinks=True, dtype=FLOAT32)
    decode = steps("decode", (history, 1), (0, 1))
    assert not _problems(
        shape, "decode", decode, {**DECODE, "tokens": 16, "splits": 2, "least": 16}
    )
    chunk = steps("mixed", (history, 3), (0, W + 1))
    assert not _problems(shape, "mixed", chunk, {**PREFILL, "rows": 16, "tokens": 16})


def test_window_of_one() -> None:
    shape = Shape(2, 1, 32, window=1, sinks=True, dtype=FLOAT32)
    assert not _problems(
        shape, "decode", steps("decode", (37, 1), (0, 1)), {**DECODE, "tokens": 16}
    )
    assert not _problems(shape, "mixed", steps("mixed", (37, 4)), {**PREFILL, "rows": 16})


@pytest.mark.parametrize("least", [16, 64])
@pytest.mark.parametrize("splits", [2, 5, 16])
def test_splits_with_and_without_work(splits: int, least: int) -> None:
    """Lengths that fill one split, some, and all of them; the merge takes two chunks of eight."""
    shape = Shape(2, 1, 32, dtype=FLOAT32)
    scenario = steps("decode", (300, 1), (16, 1), (0, 1), (255, 1))
    choice = {**DECODE, "tokens": 16, "splits": splits, "least": least}
    assert not _problems(shape, "decode", scenario, choice)


@pytest.mark.parametrize(
    "shape", (Shape(2, 1, 32, dtype=FLOAT32), *SHAPES[2:4], *SHAPES[5:9]), ids=str
)
@pytest.mark.parametrize(
    "cluster, splits, least", [(2, 2, 16), (4, 4, 64), (4, 8, 16), (2, 16, 16)]
)
def test_clusters_merge(shape: Shape, cluster: int, splits: int, least: int) -> None:
    """Parts of one block, of one cluster, and of several that the last one merges; idle blocks."""
    scenario = steps("decode", (300, 1), (16, 1), None, (0, 1), (255, 1), (40, 1))
    tile = {"tokens": 16, "splits": splits, "least": least, "cluster": cluster}
    assert not _problems(shape, "decode", scenario, {**DECODE, **tile})


def test_padding_rows_are_zeroed_and_requests_without_a_token_are_passed_over() -> None:
    shape = Shape(2, 1, 32, dtype=FLOAT32)
    for phase, choice in (("decode", DECODE), ("mixed", PREFILL)):
        scenario = steps(phase, (20, 1), None, (7, 0), (33, 1), (5, 0), None, (0, 1))
        assert not _problems(shape, phase, scenario, choice)


def test_decode_without_a_prologue() -> None:
    scenario = scenarios("decode", 512, 7)[-1]
    choice = {**DECODE, "splits": 3}
    assert not _problems(Shape(), "decode", scenario, choice, fused=False)


def test_prompts_take_prepared_queries() -> None:
    network = layers(Shape()).search(0, "mixed").network
    wanted = ("attn.q_rope", "attn")
    mask = sum(1 << i for i, n in enumerate(network.nodes) if n.name in wanted)
    refusal = prefill_roles(Region(network, mask), "mixed")
    assert isinstance(refusal, Refusal) and "registers" in refusal.reason


def test_chunks_of_several_requests() -> None:
    scenario = steps("mixed", (100, 30), (0, 1), (47, 1), None, (16, 17), (0, 40))
    assert not _problems(Shape(3, 1, 32, dtype=FLOAT32), "mixed", scenario, {**PREFILL, "rows": 64})


REAL = Shape(32, 8, 128)
NARROW = Shape(32, 8, 128, float8=True)
WINDOWED = Shape(20, 4, 128, window=128, sinks=True, norm=False)


def _units() -> list[TritonUnit]:
    """Published shapes with tiles that plans give them where no assembler spills.

    64 tokens on 4 warps need 255 registers: that of Triton 3.7 spills 8 bytes, and a build that
    finds so plans again.
    """
    decode, prompt = {**DECODE, "tokens": 32}, {"rows": 64, "tokens": 64, "stages": 2, "warps": 8}
    wanted = [
        (REAL, "decode", {**decode, "splits": 16}),
        (WINDOWED, "decode", {**decode, "splits": 2}),
        (REAL, "mixed", prompt),
        (WINDOWED, "mixed", prompt),
        (NARROW, "decode", {**decode, "splits": 16}),
        (NARROW, "mixed", prompt),
    ]
    found = []
    for number, (shape, phase, choice) in enumerate(wanted):
        model = layers(shape)
        kernel = attention_kernel(model, phase)
        made = gpu_kernel(kernel, choice, model.layout)
        found += [replace(p.unit, name=f"attention_{number}") for p in made.passes]
    return found


def test_published_shapes_compile_without_spills(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with store.session():
        made = compile_triton(_units(), sms=(80, 90), store=store, jobs=2)
        text = {(k.name, k.sm): k.ptx.read_text() for k in made}
    for kernel in made:  # a kernel that spills is refused by `compile_triton`
        assert kernel.image.registers <= 255
        assert "cp.async" in text[kernel.name, kernel.sm]
    assert "wgmma" in text["attention_2", 90] and "mma.sync" in text["attention_0", 90]
    # What may be read early is asked for before the wait, and everybody waits.
    # An SM that makes float16 of e4m3 is asked to, and nothing is spent on it elsewhere.
    for name in ("attention_4", "attention_5"):
        assert "cvt.rn.f16x2.e4m3x2" in text[name, 90] and "e4m3" not in text[name, 80]
    early = text["attention_0", 90].split("griddepcontrol.wait")[0]
    assert "prefetch.global.L2" in early and "griddepcontrol" not in text["attention_0", 80]
