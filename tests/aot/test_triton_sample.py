"""Generated choices, interpreted: noise to the bit, top-k, top-p, ties, long rows, the head."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_trials import reference, trial

from kernelgen.codegen.rendering import render
from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.compile.store import Store
from kernelgen.compile.triton import compile_triton
from kernelgen.ops.sample import gumbel, murmur3_word
from kernelgen.verify.interpreter import install
from kernelgen.verify.scenario import Sampling

GREEDY = Sampling()
KINDS = (
    GREEDY,
    Sampling(1.0, seed=42),
    Sampling(0.7, top_k=5, seed=7),
    Sampling(0.8, top_p=0.9, seed=-1),
    None,
    Sampling(1.3, top_k=20, top_p=0.8, seed=1 << 40),
    Sampling(0.5, top_k=1, top_p=0.0, seed=3),
    Sampling(2.0, top_k=1 << 30, seed=(1 << 63) - 1),
)
GOLDEN = (
    (0, 0, 0, 0x8134CDF8),
    (42, 0, 0, 0x6F610FE4),
    (42, 0, 1, 0x6AC7E06F),
    (42, 17, 50000, 0x0D5C162A),
    (-1, 5, 9, 0x73E5EF0E),
    (1234567890123, 4095, 151935, 0x02682AB0),
    (42, (1 << 30) + 17, 50000, 0xF26912C5),
)
PROBE = """import triton
import triton.language as tl

{functions}

@triton.jit
def probe(numbers, words, noise, N: tl.constexpr):
    i = tl.arange(0, N)
    low, high = tl.load(numbers + 4 * i), tl.load(numbers + 4 * i + 1)
    word = noise_word(low, high, tl.load(numbers + 4 * i + 2), tl.load(numbers + 4 * i + 3))
    tl.store(words + i, word.to(tl.int32, bitcast=True))
    tl.store(noise + i, gumbel(word))


@triton.jit
def tail(words, noise, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(noise + i, gumbel(tl.load(words + i).to(tl.uint32, bitcast=True)))
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The noise as kernels have it."""
    install()
    path = Path(tmp_path_factory.mktemp("noise")) / "probe.py"
    path.write_text(PROBE.format(functions=render("triton/noise.j2")))
    spec = importlib.util.spec_from_file_location("noise_probe", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _signed(word: int) -> int:
    return word - (1 << 32) if word & (1 << 31) else word


def test_noise_words_are_those_of_the_table(probe: Any) -> None:
    rows = [
        [_signed(seed & 0xFFFFFFFF), _signed(seed >> 32 & 0xFFFFFFFF), position, token]
        for seed, position, token, _ in (*GOLDEN, GOLDEN[0])
    ]
    words, noise = torch.zeros(8, dtype=torch.int32), torch.zeros(8)
    probe.probe[(1,)](torch.tensor(rows, dtype=torch.int32), words, noise, 8)
    assert [w & 0xFFFFFFFF for w in words.tolist()][:7] == [g[3] for g in GOLDEN]
    for got, (seed, position, token, word) in zip(noise.tolist(), GOLDEN, strict=False):
        assert murmur3_word(seed, position, token) == word
        assert got == pytest.approx(gumbel(word), rel=2e-6, abs=2e-7)


def test_noise_is_accurate_in_both_tails(probe: Any) -> None:
    words = [0, 1, 2, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 31) + 1]
    words += [0xFFFFFFFF - w for w in words]
    noise = torch.zeros(16)
    probe.tail[(1,)](torch.tensor([_signed(w) for w in words], dtype=torch.int32), noise, 16)
    for got, word in zip(noise.tolist(), words, strict=True):
        assert got == pytest.approx(gumbel(word), rel=3e-6, abs=2e-7), hex(word)


@pytest.mark.parametrize(
    "vocabulary, columns, parts",
    [(1000, 256, 4), (1000, 256, 1), (4096, 1024, 4), (333, 128, 8), (5, 128, 1)],
)
def test_every_kind_of_row(vocabulary: int, columns: int, parts: int) -> None:
    tile = {"columns": columns, "parts": parts, "warps": 4}
    for wanted in (KINDS, KINDS[::-1]):
        assert not trial(vocabulary, "sample", tile, wanted).problems()


def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """So short that few rows fit them."""
    from kernelgen.codegen.triton import sample

    for name, most in {"LIST": 64, "SHORT": 32, "SHORTEST": 16}.items():
        monkeypatch.setattr(sample, name, most)


def test_rows_that_keep_more_than_the_list_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes over the whole row; maxima of groups bound nothing, or too much."""
    short_lists(monkeypatch)
    wanted = [
        Sampling(1.0, top_k=20, seed=4),
        Sampling(1.0, top_k=60, top_p=0.7, seed=5),
        Sampling(1.0, top_k=100, seed=5),
        Sampling(1.0, top_k=300, top_p=0.9, seed=6),
        Sampling(5.0, top_p=0.95, seed=7),
        Sampling(3.0, top_k=400, seed=8),
    ]
    tile = {"columns": 256, "parts": 2, "warps": 4}
    assert not trial(1000, "sample", tile, wanted).problems()


@pytest.mark.parametrize(
    "kept", [{"top_k": 1}, {"top_k": 2}, {"top_p": 0.004}, {"top_k": 9, "top_p": 0.3}]
)
def test_not_one_more_is_kept(kept: dict[str, Any]) -> None:
    """Logits so flat that a token too many, or too few, would soon be seen."""
    wanted = [Sampling(9.0, seed=i, **kept) for i in range(4 if "top_k" not in kept else 16)]
    tile = {"columns": 256, "parts": 2, "warps": 4}
    assert not trial(500, "sample", tile, wanted).problems()


def test_refused_candidates_are_replaced_within_their_class() -> None:
    """A nucleus that refuses most candidates: those behind them, then all classes anew."""
    logits = torch.randn(1500, generator=torch.Generator().manual_seed(5))
    wanted = [Sampling(1.0, top_p=p, seed=i) for i, p in enumerate((0.7, 0.5, 0.3, 0.1))]
    tile = {"columns": 128, "parts": 3, "warps": 4}
    assert not trial(1500, "sample", tile, wanted, logits=logits).problems()


def test_large_top_k_with_top_p() -> None:
    """More than a list is for: the k-th logit is searched for first."""
    logits = torch.randn(1500, generator=torch.Generator().manual_seed(6))
    logits[:900] = logits[:900].round()  # with ties at the bound
    wanted = [
        Sampling(1.0, top_k=k, top_p=p, seed=k)
        for k, p in ((257, 1.0), (300, 0.9), (700, 0.5), (1000, 0.99), (1499, 0.999))
    ]
    tile = {"columns": 256, "parts": 2, "warps": 4}
    assert not trial(1500, "sample", tile, wanted, logits=logits).problems()


def test_neighbours_that_crowd_the_list() -> None:
    """All large logits stand in few groups: the list is cut down before its logits are compared."""
    logits = torch.randn(4000, generator=torch.Generator().manual_seed(7))
    logits[1000:1900] += 9.0
    wanted = [Sampling(1.0, top_k=k, top_p=0.9, seed=k) for k in (12, 50, 256)]
    tile = {"columns": 256, "parts": 2, "warps": 4}
    assert not trial(4000, "sample", tile, wanted, logits=logits).problems()


def test_min_p() -> None:
    """Before top-k and top-p; greedy rows do not ask."""
    wanted = [
        replace(GREEDY, min_p=0.5),
        Sampling(2.0, seed=1),
        Sampling(2.0, seed=2, min_p=0.2),
        Sampling(2.0, top_k=40, seed=3, min_p=0.3),
        Sampling(2.0, top_p=0.8, seed=4, min_p=0.1),
        Sampling(2.0, top_k=300, top_p=0.8, seed=5, min_p=0.02),
        Sampling(2.0, top_k=30, top_p=0.8, seed=6, min_p=1.0),
    ]
    logits = 3.0 * torch.randn(7, 900, generator=torch.Generator().manual_seed(8))
    tile = {"columns": 256, "parts": 2, "warps": 4}
    assert not trial(900, "sample", tile, wanted, logits=logits).problems()


@pytest.mark.parametrize("small", [False, True])
def test_ties_go_to_the_lowest_ids(small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        short_lists(monkeypatch)
    logits = torch.zeros(700)
    logits[[3, 500, 650]] = 1.0
    logits[7] = -0.0
    wanted = [
        GREEDY,
        Sampling(1.0, top_k=2, seed=1),
        Sampling(1.0, top_k=90, seed=2),
        Sampling(1.0, top_p=0.2, seed=3),
    ]
    tile = {"columns": 256, "parts": 2, "warps": 4}
    made = trial(700, "sample", tile, wanted, logits=logits)
    assert not made.problems()
    assert made.given["sample"].tensor[0] == 3
    same = torch.full((700,), -2.5)
    assert not trial(700, "sample", tile, wanted, logits=same).problems()


def test_infinite_logits_are_never_chosen_where_others_are() -> None:
    logits = torch.full((700,), float("-inf"))
    logits[[5, 600]] = torch.tensor([0.5, 0.25])
    wanted = [
        GREEDY,
        Sampling(1.0, seed=1),
        Sampling(1.0, top_k=5, seed=2),
        Sampling(1.0, top_p=0.9, seed=3),
    ]
    made = trial(700, "sample", {"columns": 256, "parts": 2, "warps": 4}, wanted, logits=logits)
    assert not made.problems()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_row_with_nan_has_no_token(sign: float) -> None:
    """Of whatever sign; the rows beside it have theirs."""
    kinds = [k for k in KINDS if k is not None]
    logits = torch.randn(len(kinds), 700, generator=torch.Generator().manual_seed(4))
    made = trial(700, "sample", {"columns": 256, "parts": 2, "warps": 4}, kinds, logits=logits)
    made._run()
    meant = made.given["sample"].tensor[: len(kinds)].tolist()
    assert min(meant) >= 0 and not made._around()
    for broken in range(len(kinds)):
        bad = logits.clone()
        bad[broken, 650 - 64 * broken] = sign * torch.tensor(float("nan"))
        made = trial(700, "sample", {"columns": 256, "parts": 2, "warps": 4}, kinds, logits=bad)
        made._run()
        want = [-2 if i == broken else t for i, t in enumerate(meant)]
        assert made.given["sample"].tensor[: len(kinds)].tolist() == want
        assert made.last.tensor[broken ^ 1] == 0 and not made._around()


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    """Rows in another order, in another number of parts, choose the same."""
    tiles = ({"columns": 256, "parts": 4, "warps": 4}, {"columns": 512, "parts": 1, "warps": 4})
    logits = torch.randn(900, generator=torch.Generator().manual_seed(3))
    found = []
    for tile in tiles:
        made = trial(900, "sample", tile, [Sampling(1.0, top_k=50, seed=9)] * 3, logits=logits)
        assert not made.problems()
        found.append(made.given["sample"].tensor[:3].tolist())
    assert found[0] == found[1] and len(set(found[0])) > 1  # positions differ


CHOOSE = {"choose_columns": 256, "choose_parts": 2, "choose_warps": 4}
CORES = (
    {"core": 0, "outputs": 16, "depth": 32, "warps": 4, "blocks": 0},
    {"core": 0, "outputs": 4, "depth": 64, "warps": 4, "blocks": 3},
    {
        "core": 1,
        "rows": 16,
        "outputs": 64,
        "depth": 32,
        "splits": 1,
        "stages": 2,
        "warps": 4,
        "ahead": 0,
    },
    {"core": 2, "rows": 64, "outputs": 64, "depth": 32, "stages": 2, "warps": 4},
)


@pytest.mark.parametrize("core", CORES, ids=["gemv", "gemv-kept", "skinny", "gemm"])
@pytest.mark.parametrize("spared", [False, True])
def test_head(core: dict[str, int], spared: bool) -> None:
    check_head(core, KINDS if core["core"] else KINDS[:1], spared)


@pytest.mark.parametrize("wanted", [KINDS[2], KINDS[3], KINDS[5], None], ids=str)
def test_head_of_one_row(wanted: Sampling | None) -> None:
    """Blocks of few columns share entries of the list of maxima: counters, which are 0 again."""
    for core in CORES[:2]:
        check_head(core, [wanted], spared=True)


def check_head(core: dict[str, int], wanted: Sequence[Sampling | None], spared: bool) -> None:
    made = trial(600, "head_sample", {**core, **CHOOSE}, wanted, spared=spared)
    made._run()
    rows = len(wanted)
    x, matrix = made.meant["x"][:rows].double(), made.meant["head.weight"].double()
    meant = x @ matrix.T
    stored = made.given["head"].tensor[:rows]
    greedy = torch.tensor([w == GREEDY for w in wanted]) & spared
    assert bool(torch.isnan(stored[greedy]).all())  # nobody reads them
    exact = torch.where(greedy[:, None], meant.float(), stored)
    torch.testing.assert_close(exact.double(), meant, rtol=0, atol=1e-4)
    got = made.given["sample"].tensor[:rows].tolist()
    asked = [w is not None for w in wanted]
    assert got == [
        t if a else -1 for t, a in zip(reference(exact.double(), made.scenario), asked, strict=True)
    ]
    assert not made._around()


def test_large_vocabularies_compile_without_spills(tmp_path: Path) -> None:
    """The choice alone, and a head of 151,936 columns with the choice behind it."""
    units = []
    core = {"core": 1, "rows": 64, "outputs": 128, "depth": 64, "splits": 1, "stages": 3}
    head = {**core, "warps": 4, "ahead": 0}
    later = {"choose_columns": 2048, "choose_parts": 2, "choose_warps": 8}
    alone = {"columns": 2048, "parts": 128, "warps": 8}
    for family, choice in (("sample", alone), ("head_sample", {**head, **later})):
        made = trial(151936, family, choice, KINDS[:1])
        passes = gpu_kernel(made.kernel, choice, made.model.layout).passes
        units += [replace(p.unit, name=f"{family}_{i}") for i, p in enumerate(passes)]
    store = Store(tmp_path / "store")
    with store.session():
        compiled = compile_triton(units, sms=(80, 90), store=store, jobs=2)
    assert len(compiled) == 8 and all(k.image.spill_bytes == 0 for k in compiled)
