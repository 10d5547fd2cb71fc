"""Owns the baseline of attention: torch's own kernels on contiguous keys and values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from kernelgen.bench.built import Built, Heads
from kernelgen.bench.case import Case
from kernelgen.bench.gpu_time import graph_us
from kernelgen.bench.kernels import MeasuredLaunch
from kernelgen.bench.series import Series

BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
ROTATED = 4
"""copies of keys and values take at least this many times the L2 cache"""
LAUNCHES = (8, 512)
"""fewest and most launches of one graph; a prompt is bound by its products and takes the fewest"""


@dataclass(frozen=True)
class AttentionFigures:
    """One launch of one layer, µs: the best of torch's backends, and ours with all it does.

    `phase`: decode (one query a request over `context` entries) or prompt (causal over them).
    """

    phase: str
    heads: int
    kv_heads: int
    head_dim: int
    batch: int
    context: int
    count: int
    backend: str
    torch_us: Series
    ours_us: float | None


def measure_attention(
    built: Built, case: Case, context: int, launches: Sequence[MeasuredLaunch]
) -> tuple[tuple[AttentionFigures, ...], tuple[str, ...]]:
    """Attention of every kind of layer, and what could not be measured."""
    found, notes = [], []
    for heads, count in Counter(built.heads.values()).items():
        seen = min(context, heads.window or context)
        mean = _ours(built, heads, launches)
        shapes = [("decode", seen, mean)]
        if heads.window is None or case.prompt <= heads.window:
            shapes.append(("prompt", case.prompt, None))
        for phase, entries, own in shapes:
            best = best_backend(heads, case.batch, entries, phase, built.dtype)
            if best is None:
                notes.append(f"torch has no attention for {phase} with heads of {heads.head_dim}")
                continue
            shape = (heads.heads, heads.kv_heads, heads.head_dim, case.batch, entries, count)
            found.append(AttentionFigures(phase, *shape, *best, own))
    return tuple(found), tuple(notes)


def best_backend(
    heads: Heads, batch: int, context: int, phase: str, dtype: str
) -> tuple[str, Series] | None:
    """The fastest backend that takes the shape, and its time of one launch."""
    work = _Attend(heads, batch, context, phase, dtype)
    found = []
    for backend in BACKENDS:
        time = _timed(backend, work)
        if time is not None:
            found.append((backend.partition("_")[0].lower(), time))
    return min(found, key=lambda item: item[1].median, default=None)


def _timed(backend: str, work: _Attend) -> Series | None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    try:
        with sdpa_kernel([getattr(SDPBackend, backend)]):
            return Series.of(graph_us(work.run).values, 1 / work.launches)
    except (RuntimeError, AttributeError):  # the backend does not take the shape
        torch.cuda.synchronize()
        return None


class _Attend:
    """Launches of one shape over keys and values in turns."""

    def __init__(self, heads: Heads, batch: int, context: int, phase: str, dtype: str) -> None:
        import torch

        of: dict[str, Any] = {"dtype": getattr(torch, dtype), "device": torch.device("cuda")}
        self._causal, self._grouped = phase == "prompt", heads.heads != heads.kv_heads
        queries = context if self._causal else 1
        self._q = torch.randn(batch, heads.heads, queries, heads.head_dim, **of)
        shape = (2, batch, heads.kv_heads, context, heads.head_dim)
        cache = torch.cuda.get_device_properties(of["device"]).L2_cache_size
        fewest, most = LAUNCHES
        copies = 1 + ROTATED * cache // (math.prod(shape) * of["dtype"].itemsize)
        copies = min(copies, fewest if self._causal else most)
        self._pairs = cycle(torch.randn(copies, *shape, **of).unbind())
        self.launches = max(fewest, copies)

    def run(self) -> None:
        """All of them."""
        from torch.nn.functional import scaled_dot_product_attention

        for k, v in islice(self._pairs, self.launches):
            scaled_dot_product_attention(
                self._q, k, v, is_causal=self._causal, enable_gqa=self._grouped
            )


def _ours(built: Built, heads: Heads, launches: Sequence[MeasuredLaunch]) -> float | None:
    layers = {layer for layer, of in built.heads.items() if of == heads}
    advances = [
        launch.time.advance_us
        for launch in launches
        if launch.planned and launch.planned.layer in layers and "attn" in launch.planned.ops
    ]
    return round(sum(advances) / len(layers), 3) if advances else None
