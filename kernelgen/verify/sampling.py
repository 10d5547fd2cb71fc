"""Owns which token ids a sampling kernel may choose, given how far its logits may be off."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kernelgen.ops.step import StepView
from kernelgen.verify.bounded import LIBRARY, U, summed
from kernelgen.verify.tensors import Tensor

Words = npt.NDArray[np.uint32]
NOISE_ERROR = 1e-5
"""absolute, of a noise computed in float32: it is at most 23, two logarithms of 2 ulp each"""


def noise(seed: int, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The keyed noise of many ids at once: what `ops.sample` says for one."""
    low, high = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    h: Words = np.zeros(len(ids), np.uint32)
    for word in (low, high, position & 0xFFFFFFFF, ids.astype(np.uint32)):
        h ^= _rotated(np.uint32(word) * np.full_like(h, 0xCC9E2D51), 15) * np.uint32(0x1B873593)
        h = _rotated(h, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    h ^= np.uint32(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h ^= h >> np.uint32(shift)
        h *= np.uint32(factor)
    uniform = (h.astype(np.float64) + 0.5) * 2.0**-32
    found: npt.NDArray[np.float64] = -np.log(-np.log1p(-uniform))
    return found


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def acceptable(logits: Tensor, error: Tensor, view: StepView, row: int) -> set[int]:
    """Ids that are right for a logit row `[vocabulary]` once float32 rounding is granted.

    Nearly always one id. More where the two best noisy logits, or a candidate and the edge of
    top-k or top-p, are closer than float32 can tell.
    """
    import torch

    if view.temperature[row] == 0:
        if not error.any():
            return {int(logits.argmax())}
        near = logits + error >= (logits - error).max()
        return set(torch.nonzero(near).flatten().tolist())
    x = logits / view.temperature[row]
    off = error / view.temperature[row] + 4 * U * x.abs()
    surely, maybe = _likely(x, off, view.min_p[row] if view.min_p else 0.0)
    x = torch.where(maybe, x, -torch.inf)
    in_both = _candidates(x, off, view.top_k[row], view.top_p[row])
    surely, maybe = surely & in_both[0], maybe & in_both[1]
    ids = torch.nonzero(maybe).flatten()
    found = noise(view.seed[row], view.position[row], ids.numpy())
    noisy = x[ids] + torch.from_numpy(found)
    slack = off[ids] + NOISE_ERROR + LIBRARY * noisy.abs()
    sure = (noisy - slack)[surely[ids]]
    right = noisy + slack >= sure.max() if len(sure) else torch.ones_like(ids, dtype=torch.bool)
    return set(ids[right].tolist())


def _likely(x: Tensor, off: Tensor, min_p: float) -> tuple[Tensor, Tensor]:
    """Masks of the ids that min-p surely keeps, and of those that it may keep."""
    import torch

    if min_p <= 0:
        everything = torch.ones_like(x, dtype=torch.bool)
        return everything, everything
    top = x.argmax()
    floor, slack = x[top] + math.log(min_p), off + off[top] + LIBRARY
    first = torch.arange(len(x)) == top
    return (x - slack >= floor) | first & (off[top] == 0), x + slack >= floor


def _candidates(x: Tensor, off: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Masks of the ids that top-k and top-p surely keep, and of those that they may keep."""
    import torch

    order = torch.argsort(x, descending=True, stable=True)
    ranked, slack = x[order], 2 * off[order]
    rank = torch.arange(len(ranked))
    surely = maybe = torch.ones_like(rank, dtype=torch.bool)
    if 0 < top_k < len(ranked):
        # Equal logits stay in the order of their ids, whatever rounding does to both.
        last, out = ranked[top_k - 1], ranked[top_k]
        surely = (rank < top_k) & ((ranked - slack > out) | (ranked == out))
        maybe = (rank < top_k) | (ranked + slack > last) & (ranked != last)
    if top_p < 1:
        # Who is out of top-k moves the mass before an id: its bounds take both ends of the doubt.
        mass = torch.exp(ranked - ranked[0])
        of_all, of_sure = (torch.where(kept, mass, 0.0) for kept in (maybe, surely))
        most = (of_all.cumsum(0) - of_all) / of_sure.sum()
        least = (of_sure.cumsum(0) - of_sure) / of_all.sum()
        blur = summed(len(ranked)) + 2 * float(off.max()) + LIBRARY
        first_alone = (rank == 0) & ((ranked - slack > ranked[1]) | (ranked == ranked[1]))
        surely = surely & ((most < top_p - blur) | first_alone)
        maybe = maybe & ((least < top_p + blur) | (ranked + slack >= ranked[0]))
    place = torch.empty_like(order)
    place[order] = rank
    return surely[place], maybe[place]
