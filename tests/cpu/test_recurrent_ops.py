"""References of scans and latent attention: against other forms of the same formulas, float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, INT32
from kernelgen.ir.types import Dim, Sizes, Type
from kernelgen.ops import DeltaScan, HeadLinear, LatentAttention, LatentWrite, ShortConv
from kernelgen.ops.step import DenseRows, DenseState, StepView

BOUND = 1e-11
H, K, V = 2, 6, 5
CHUNK = 64


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def view(*runs: tuple[int, int, int]) -> StepView:
    """A step of (request, first position, tokens) runs; request −1 is padding."""
    request = [r for r, _, n in runs for _ in range(n)]
    positions = [p + i for _, p, n in runs for i in range(n)]
    return StepView(torch.tensor(positions), torch.tensor(request))


def delta(tokens: int, bound: float | None, slow: float = -2.0) -> tuple[DeltaScan, list]:
    """An op and its inputs but for state and rows; decays around e^(−e^slow)."""
    op = DeltaScan(K**-0.5, 1e-6, bound, FLOAT32)
    heads = [random(tokens, H, d, seed=s) for s, d in enumerate((K, K, V, K))]
    rest = [random(tokens, H, seed=9), slow + 0.3 * random(H, seed=8), random(H * K, seed=7)]
    return op, [*heads, *rest]


def states(count: int) -> DenseState:
    return DenseState([random(H, K, V, seed=40 + i) for i in range(count)])


def scan(op: DeltaScan, inputs: Sequence, state: DenseState, step: StepView) -> tuple:
    return op.reference([*inputs, state, step.request], step)


def rows(inputs: Sequence, start: int, stop: int) -> list:
    """The part of the inputs that belongs to some tokens."""
    return [x[start:stop] if i < 5 else x for i, x in enumerate(inputs)]


def chunked(op: DeltaScan, inputs: Sequence, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The closed form over chunks: a triangular system in the place of the recurrence, powers of
    two, only differences of sums within a chunk."""
    q, k, v, f, beta, rate, bias = inputs
    q, k = op.normed(q) * op.scale, op.normed(k)
    g, learn = op.decays(f, rate, bias) / math.log(2), torch.sigmoid(beta)
    out = torch.zeros_like(v)
    for start in range(0, len(q), CHUNK):
        part = slice(start, start + CHUNK)
        for h in range(H):
            total = g[part, h].cumsum(0)
            qc, kc, vc, b = q[part, h], k[part, h], v[part, h], learn[part, h]
            left = torch.exp2(total[:, None] - total[None])  # i, j, column
            causal = torch.ones(len(qc), len(qc), dtype=torch.bool).tril()
            keys = torch.einsum("ik,jk,ijk->ij", kc, kc, left).masked_fill(~causal, 0)
            seen = torch.einsum("ik,jk,ijk->ij", qc, kc, left).masked_fill(~causal, 0)
            system = torch.eye(len(qc), dtype=qc.dtype) + b[:, None] * keys.tril(-1)
            grown = torch.exp2(total)
            errors = torch.linalg.solve(system, b[:, None] * (vc - (kc * grown) @ s[h]))
            out[part, h] = (qc * grown) @ s[h] + seen @ errors
            rest = kc * torch.exp2(total[-1] - total)
            s = s.clone()
            s[h] = grown[-1][:, None] * s[h] + rest.T @ errors
    return out, s


@pytest.mark.row("R-009")
@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("slow", [-6.0, -2.0, math.log(16)])
def test_delta_scan_equals_the_closed_form(tokens: int, bound: float | None, slow: float) -> None:
    op, inputs = delta(tokens, bound, slow)
    state = states(1)
    out, after = scan(op, inputs, state, view((0, 7, tokens)))
    expected, left = chunked(op, inputs, state.values[0])
    assert float((out - expected).abs().max()) <= BOUND
    assert float((after.values[0] - left).abs().max()) <= BOUND


@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("cuts", [(1,) * 19, (7, 11, 1), (1, 18)], ids=str)
def test_delta_scan_in_chunks_equals_one(cuts: tuple[int, ...], bound: float | None) -> None:
    op, inputs = delta(19, bound)
    whole, end = scan(op, inputs, states(1), view((0, 0, 19)))
    state, made, at = states(1), [], 0
    for count in cuts:
        part = rows(inputs, at, at + count)
        out, state = scan(op, part, state, view((0, at, count)))
        made.append(out)
        at += count
    assert float((torch.cat(made) - whole).abs().max()) <= BOUND
    assert float((state.values[0] - end.values[0]).abs().max()) <= BOUND


def test_a_first_token_does_not_see_what_the_slot_held() -> None:
    """A one-token first chunk is no decode step."""
    op, inputs = delta(1, None)
    clean = DenseState([torch.zeros(H, K, V, dtype=torch.float64)])
    out, after = scan(op, inputs, states(1), view((0, 0, 1)))
    expected, left = scan(op, inputs, clean, view((0, 0, 1)))
    assert torch.equal(out, expected) and torch.equal(after.values[0], left.values[0])


def test_requests_and_padding_of_one_step_do_not_mix() -> None:
    op, inputs = delta(9, None)
    step = view((1, 3, 4), (-1, 0, 2), (0, 0, 3))
    before = states(3)
    out, after = scan(op, inputs, before, step)
    assert not out[4:6].any()
    assert torch.equal(after.values[2], before.values[2])
    for request, position, part in ((1, 3, slice(0, 4)), (0, 0, slice(6, 9))):
        count = part.stop - part.start
        alone = DenseState([before.values[request]])
        step = view((0, position, count))
        single, left = scan(op, rows(inputs, part.start, part.stop), alone, step)
        assert torch.equal(out[part], single)
        assert torch.equal(after.values[request], left.values[0])


def test_references_leave_their_states_alone() -> None:
    op, inputs = delta(3, None)
    state = states(1)
    kept = state.values[0].clone()
    scan(op, inputs, state, view((0, 2, 3)))
    assert torch.equal(state.values[0], kept)


def test_decays() -> None:
    op, inputs = delta(40, None)
    f, rate, bias = inputs[3] * 30, inputs[5], inputs[6]
    z = f + bias.view(H, K)
    plain = -rate.exp()[:, None] * torch.nn.functional.softplus(z, threshold=1e9)
    assert float((op.decays(f, rate, bias) - plain).abs().max()) <= 1e-8  # the cut at 20
    bounded, _ = delta(40, -5.0)
    g = bounded.decays(f, rate, bias)
    assert float(g.max()) <= 0 and float(g.min()) >= -5.0
    assert torch.equal(g, -5.0 * torch.sigmoid(rate.exp()[:, None] * z))


def test_short_conv() -> None:
    width, taps = 7, 4
    op, weight = ShortConv(FLOAT32), random(width, taps)
    x = random(11, width)
    blank = DenseState([random(taps - 1, width, seed=3)])
    step = view((0, 0, 11))
    out, after = op.reference([x, weight, blank, step.request], step)
    padded = torch.cat([torch.zeros(taps - 1, width, dtype=x.dtype), x])
    expected = torch.nn.functional.conv1d(padded.T[None], weight[:, None], groups=width)[0].T
    assert float((out - expected).abs().max()) <= BOUND
    assert torch.equal(after.values[0], x[-3:])
    made, state = [], blank
    for start, count in ((0, 1), (1, 1), (2, 8), (10, 1)):
        step = view((0, start, count))
        out, state = op.reference([x[start : start + count], weight, state, step.request], step)
        made.append(out)
    assert float((torch.cat(made) - expected).abs().max()) <= BOUND
    assert torch.equal(state.values[0], x[-3:])


def test_latent_attention_equals_attention_with_keys_and_values_made() -> None:
    heads, nope, beside, rank, wide, tokens = 3, 5, 4, 8, 6, 9
    q = random(tokens, heads, nope + beside)
    keys, values = random(heads, nope, rank), random(heads, wide, rank)
    latent, shared = random(tokens, rank), random(tokens, beside, seed=2)
    step, scale = view((0, 0, tokens)), (nope + beside) ** -0.5
    empty = DenseRows([torch.zeros(tokens, rank + beside, dtype=q.dtype)])
    (state,) = LatentWrite().reference([empty, latent, shared, step.request], step)
    (inner,) = HeadLinear(True, FLOAT32).reference([q, keys], step)
    op = LatentAttention(scale, FLOAT32)
    (out,) = op.reference([inner, q, state, step.request], step)
    (found,) = HeadLinear(False, FLOAT32).reference([out, values], step)

    made = torch.einsum("sr,hnr->shn", latent, keys)
    whole = torch.cat([made, shared[:, None].expand(-1, heads, -1)], -1)
    scores = torch.einsum("thd,shd->hts", q, whole) * scale
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    mixed = torch.softmax(scores.masked_fill(~causal, -torch.inf), -1)
    expected = torch.einsum("hts,sr,hvr->thv", mixed, latent, values)
    assert float((found - expected).abs().max()) <= BOUND
    assert not empty.rows[0].any()


T = Dim.T
ROWS = Type((T,), INT32)
HEADS = Type((T, H, K), FLOAT32)
MEMORY = Type((H, K, K), FLOAT32)
GATES = (Type((T, H), FLOAT32), Type((H,), FLOAT32), Type((H * K,), FLOAT32))
WRONG = {
    "state of other heads": (
        DeltaScan(1.0, 1e-6, None, FLOAT32),
        (HEADS, HEADS, HEADS, HEADS, *GATES, Type((3, K, K), FLOAT32), ROWS),
    ),
    "a rounded state": (
        DeltaScan(1.0, 1e-6, None, FLOAT32),
        (HEADS, HEADS, HEADS, HEADS, *GATES, Type((H, K, K), BFLOAT16), ROWS),
    ),
    "rates longer than the heads": (
        DeltaScan(1.0, 1e-6, None, FLOAT32),
        (HEADS, HEADS, HEADS, HEADS, GATES[0], Type((H + 1,), FLOAT32), GATES[2], MEMORY, ROWS),
    ),
    "a bound that grows": (
        DeltaScan(1.0, 1e-6, 0.5, FLOAT32),
        (HEADS, HEADS, HEADS, HEADS, *GATES, MEMORY, ROWS),
    ),
    "taps of other columns": (
        ShortConv(FLOAT32),
        (Type((T, 8), FLOAT32), Type((7, 4), FLOAT32), Type((3, 8), FLOAT32), ROWS),
    ),
    "a window of another length": (
        ShortConv(FLOAT32),
        (Type((T, 8), FLOAT32), Type((8, 4), FLOAT32), Type((4, 8), FLOAT32), ROWS),
    ),
    "matrices of other heads": (
        HeadLinear(False, FLOAT32),
        (Type((T, 2, 8), FLOAT32), Type((3, 4, 8), FLOAT32)),
    ),
    "rows that do not fit": (
        LatentWrite(),
        (Type((9,), FLOAT32), Type((T, 4), FLOAT32), Type((T, 4), FLOAT32), ROWS),
    ),
    "queries narrower than what is beside": (
        LatentAttention(1.0, FLOAT32),
        (Type((T, 2, 4), FLOAT32), Type((T, 2, 4), FLOAT32), Type((9,), FLOAT32), ROWS),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_inputs_that_do_not_fit_are_refused(case: str) -> None:
    op, inputs = WRONG[case]
    with pytest.raises(ValueError, match=op.kind):
        op.infer(inputs)


def test_bytes_count_a_state_for_each_request() -> None:
    op = DeltaScan(1.0, 1e-6, None, FLOAT32)
    inputs = (HEADS, HEADS, HEADS, HEADS, *GATES, MEMORY, ROWS)
    sizes = Sizes(tokens=8, rows=8, context=100)
    state = 8 * H * K * K * 4
    assert op.read_bytes(7, inputs, sizes) == state
    assert op.write_bytes(inputs, sizes) == state + 8 * H * K * 4
    rows_op = LatentAttention(1.0, FLOAT32)
    entries = (Type((T, 2, 4), FLOAT32), Type((T, 2, 6), FLOAT32), Type((9,), BFLOAT16), ROWS)
    assert rows_op.read_bytes(2, entries, sizes) == 8 * 100 * 9 * 2
