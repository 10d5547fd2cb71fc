"""The sampling rule: hash, noise, top-k, top-p, ties, and the distribution that comes out."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelgen.ops import Sample
from kernelgen.ops.sample import gumbel, murmur3_word
from kernelgen.ops.step import StepView


def murmur3(data: bytes, seed: int = 0) -> int:
    """The published 32-bit hash over bytes, written from its description."""

    def mixed(k: int) -> int:
        k = k * 0xCC9E2D51 % 2**32
        return (k << 15 | k >> 17) % 2**32 * 0x1B873593 % 2**32

    h, whole = seed, len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        h ^= mixed(word)
        h = ((h << 13 | h >> 19) % 2**32 * 5 + 0xE6546B64) % 2**32
    if data[whole:]:
        h ^= mixed(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> shift) * factor % 2**32
    return h


def test_the_published_test_values() -> None:
    assert murmur3(b"") == 0
    assert murmur3(b"test") == 0xBA6BD213
    assert murmur3(b"Hello, world!") == 0xC0363E43
    assert murmur3(b"The quick brown fox jumps over the lazy dog") == 0x2E4FF723


@pytest.mark.row("R-092")
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1))
def test_word_is_the_hash_of_sixteen_bytes(seed: int, position: int, token: int) -> None:
    assert murmur3_word(seed, position, token) == murmur3(
        struct.pack("<qiI", seed, position, token)
    )


@pytest.mark.row("R-092")
def test_noise_keeps_the_tail() -> None:
    """The 2⁻²⁴ end, where a float32 uniform would be 1 or 0, is still finite and monotone."""
    words = [0, 1, 2**8, 2**20, 2**31, 2**32 - 2**8, 2**32 - 1]
    noise = [gumbel(w) for w in words]
    assert noise == sorted(noise, reverse=True) and len(set(noise)) == len(noise)
    assert noise[0] == pytest.approx(33 * math.log(2), abs=1e-6)  # u = 2⁻³³
    assert noise[4] == pytest.approx(-math.log(math.log(2)), abs=1e-6)  # u = ½
    assert noise[-1] == pytest.approx(-math.log(33 * math.log(2)), abs=1e-6)  # u = 1 − 2⁻³³


def view(rows: int = 1, **fields) -> StepView:
    none = torch.zeros(0, dtype=torch.int64)
    default = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 7, "position": 3}
    return StepView(none, none, **{k: fields.get(k, [v] * rows) for k, v in default.items()})


def choose(logits: torch.Tensor, step: StepView) -> list[int]:
    return Sample().reference([logits, None], step)[0].tolist()


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 2.0], [0.0, 0.0, 0.0, 0.0]]).double()
    assert choose(logits, view(2, temperature=[0.0, 0.0])) == [1, 0]


def test_top_k_and_top_p_keep_what_they_say() -> None:
    logits = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).double().log()
    allowed = {
        (1, 1.0): {0},
        (2, 1.0): {0, 1},
        (0, 0.49): {0},
        (0, 0.51): {0, 1},
        (0, 0.84): {0, 1, 2},
        (0, 1e-9): {0},
        (3, 0.6): {0, 1},  # mass is counted among the k that are left: 0.5 / 0.85 < 0.6
        (99, 1.0): {0, 1, 2, 3, 4},
    }
    for (k, p), expected in allowed.items():
        seen = {
            choose(logits, view(top_k=[k], top_p=[p], seed=[s], temperature=[1.0]))[0]
            for s in range(300)
        }
        assert seen == expected, (k, p)


@pytest.mark.row("R-092")
def test_draws_follow_the_softmax() -> None:
    """Chi-square with 5 degrees of freedom; 20.5 has probability 0.001, and the seeds are fixed."""
    logits = torch.tensor([[1.0, 0.0, -1.0, 0.5, -2.0, 2.0]]).double()
    draws, temperature = 6000, 1.5
    counts = torch.zeros(6).double()
    for seed in range(draws):
        counts[choose(logits, view(seed=[seed], temperature=[temperature]))[0]] += 1
    expected = (logits[0] / temperature).softmax(0) * draws
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.5


def test_a_draw_depends_on_seed_position_and_nothing_else() -> None:
    logits = torch.zeros(1, 50).double()
    one = choose(logits, view(seed=[1], position=[9]))
    both = choose(logits.expand(2, 50), view(2, seed=[5, 1], position=[2, 9]))
    assert both[1] == one[0]
    others = {choose(logits, view(seed=[1], position=[p]))[0] for p in range(30)}
    assert len(others) > 10
