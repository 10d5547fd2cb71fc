"""Which ids are right: the reference's own choice always, others only where float32 cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernelgen.ops.sample import Sample, gumbel, murmur3_word
from kernelgen.ops.step import StepView
from kernelgen.verify.sampling import acceptable, noise

VOCAB = 160
# greedy, plain, top-p, top-k, both, one candidate
SETTINGS = [
    (0.0, 0, 1.0),
    (0.7, 0, 1.0),
    (1.0, 0, 0.9),
    (1.3, 5, 1.0),
    (0.8, 40, 0.6),
    (2.0, 1, 1.0),
]


def one(temperature: float, top_k: int, top_p: float, seed: int = 7, position: int = 3) -> StepView:
    empty = torch.zeros(0)
    return StepView(empty, empty, [temperature], [top_k], [top_p], [seed], [position])


@pytest.mark.parametrize("min_p", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("temperature, top_k, top_p", [(1.5, 0, 1.0), (1.0, 20, 0.8)])
def test_min_p_comes_before_the_others(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """The reference's choice is always right, and with flat logits who is dropped never is."""
    generator = torch.Generator().manual_seed(2)
    for seed in range(60):
        logits = (3 * torch.randn(VOCAB, generator=generator)).double()
        view = replace(one(temperature, top_k, top_p, seed), min_p=[min_p])
        found = acceptable(logits, torch.zeros_like(logits), view, 0)
        assert chosen(logits, view) in found
        share = torch.exp((logits - logits.max()) / temperature)
        assert all(share[i] >= min_p * (1 - 1e-5) for i in found)


def chosen(logits: torch.Tensor, view: StepView) -> int:
    return int(Sample().reference([logits[None], None], view)[0][0])


@pytest.mark.parametrize("seed", [0, 1, -1, 1 << 40, (1 << 63) - 1, -(1 << 63)])
def test_noise_of_many_ids_is_that_of_each(seed: int) -> None:
    ids = np.array([0, 1, 77, 151935], np.int64)
    expected = [gumbel(murmur3_word(seed, 12, int(i))) for i in ids]
    assert noise(seed, 12, ids) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("temperature, top_k, top_p", SETTINGS)
def test_the_reference_is_always_right_and_nearly_always_alone(
    temperature: float, top_k: int, top_p: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    alone = 0
    for seed in range(100):
        logits = (4 * torch.randn(VOCAB, generator=generator)).double()
        view = one(temperature, top_k, top_p, seed)
        found = acceptable(logits, torch.zeros_like(logits), view, 0)
        assert chosen(logits, view) in found
        alone += len(found) == 1
    assert alone >= 98


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(8, dtype=torch.float64)
    logits[[2, 5]] = 1.0
    exact = torch.zeros_like(logits)
    assert acceptable(logits, exact, one(0.0, 0, 1.0), 0) == {2}
    assert acceptable(logits, exact, one(1.0, 1, 1.0), 0) == {2}
    assert acceptable(logits, exact, one(1.0, 0, 1e-6), 0) == {2}


def test_logits_that_may_be_off_allow_either() -> None:
    logits = torch.tensor([1.0, 1.0 + 1e-7, 0.0], dtype=torch.float64)
    blurred = torch.full_like(logits, 1e-6)
    assert acceptable(logits, blurred, one(0.0, 0, 1.0), 0) == {0, 1}
    assert acceptable(logits, torch.zeros_like(logits), one(0.0, 0, 1.0), 0) == {1}
    assert acceptable(logits, blurred, one(1.0, 1, 1.0), 0) <= {0, 1}


def test_an_id_outside_top_k_or_top_p_is_wrong() -> None:
    logits = torch.arange(VOCAB, 0, -1).double()
    for seed in range(50):
        found = acceptable(logits, torch.zeros_like(logits), one(50.0, 3, 1.0, seed), 0)
        assert found <= {0, 1, 2}
        found = acceptable(logits, torch.zeros_like(logits), one(1.0, 0, 0.5, seed), 0)
        assert found == {0}
