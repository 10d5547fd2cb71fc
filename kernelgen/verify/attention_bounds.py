"""Owns how far attention over a cache may lie from its exact result; the rules are in `bounds`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.ops import Attention
from kernelgen.ops.step import StepView
from kernelgen.verify.bounded import LIBRARY, NARROW, TINY, Bounded, U, summed


def attention_error(
    op: Attention, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView
) -> Any:
    """Errors of scores become relative errors of softmax weights."""
    import torch

    error = torch.zeros_like(values[0])
    for row, mine in _rows(view):
        seen = _seen(op, inputs, row, mine, view.positions[mine])
        relative = torch.expm1(2 * seen.off) + 2 * LIBRARY + summed(seen.weights.shape[-1])
        moved = torch.einsum("thn,nhd->thd", seen.weights, seen.v_error)
        error[mine] = seen.size() * relative + moved + TINY
    return [error]


def weights_rounded(op: Attention, inputs: Sequence[Bounded], view: StepView, narrow: bool) -> Any:
    """What an online softmax may be off besides; `narrow`: its weights are rounded to bfloat16."""
    import torch

    error = torch.zeros_like(inputs[0].value)
    for row, mine in _rows(view):
        seen = _seen(op, inputs, row, mine, view.positions[mine])
        size = seen.size()
        error[mine] = summed(seen.weights.shape[-1]) * size
        if narrow:
            squares = torch.einsum("thn,nhd->thd", seen.weights.square(), seen.v.square())
            error[mine] += NARROW * torch.minimum(3.5 * squares.sqrt(), size)
    return error


@dataclass(frozen=True)
class _Seen:
    """What the tokens of one request see."""

    weights: Any
    """`[tokens, heads, entries]` of the softmax"""
    off: Any
    """`[tokens, heads, 1]`: the most that a score may be off"""
    v: Any
    """`[entries, heads, D]`, 0 where nobody looks"""
    v_error: Any

    def size(self) -> Any:
        """Sum of the terms' sizes."""
        import torch

        return torch.einsum("thn,nhd->thd", self.weights, self.v.abs())


def _rows(view: StepView) -> Iterator[tuple[int, Any]]:
    """Each request row that is no padding, and its token rows."""
    import torch

    for row in sorted({r for r in view.request.tolist() if r >= 0}):
        yield row, torch.nonzero(view.request == row).flatten()


def _seen(op: Attention, inputs: Sequence[Bounded], row: int, mine: Any, positions: Any) -> _Seen:
    import torch

    first = max(0, int(positions.min()) - op.window + 1) if op.window else 0
    span = slice(first, int(positions.max()) + 1)
    q, q_error = inputs[0].value[mine], inputs[0].error[mine]
    group = q.shape[1] // inputs[1].value.keys[row].shape[1]
    value, error = inputs[1].value, inputs[1].error
    by = inputs[3 + op.sinks].value if op.scaled else (1.0, 1.0)
    k, v, k_error, v_error = (
        side[row][span].repeat_interleave(group, dim=1) * scale
        for side, scale in zip(
            (value.keys, value.values, error.keys, error.values), (*by, *by), strict=True
        )
    )
    at = torch.arange(span.start, span.stop)
    hidden = at[None, :] > positions[:, None]
    if op.window:
        hidden |= positions[:, None] - at[None, :] >= op.window

    def scores(a: Any, b: Any) -> Any:
        return torch.einsum("thd,nhd->thn", a, b).masked_fill(hidden[:, None], 0)

    exact_scores = scores(q, k) * op.scale
    spread = scores(q.abs(), k.abs()) * summed(q.shape[-1])
    spread += scores(q_error, k.abs()) + scores(q.abs(), k_error)
    off = spread * abs(op.scale) + 6 * U * exact_scores.abs()
    shown = exact_scores.masked_fill(hidden[:, None], float("-inf"))
    if op.sinks:
        sink = inputs[3].value.double()[None, :, None].expand(shown.shape[0], -1, 1)
        weights = torch.softmax(torch.cat([shown, sink], dim=-1), dim=-1)[..., :-1]
        off = torch.cat([off, 6 * U * sink.abs()], dim=-1)
    else:
        weights = torch.softmax(shown, dim=-1)
    return _Seen(weights, off.amax(-1, keepdim=True), v.nan_to_num(), v_error.nan_to_num())
