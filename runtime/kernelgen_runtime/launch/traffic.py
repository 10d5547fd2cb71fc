"""Owns the bytes a decode step has to read: what achieved bandwidth is computed from."""

import numpy as np

from ..artifact.manifest import Manifest
from ..buffers import byte_size
from ..schedule.step import Step


def weight_bytes(manifest: Manifest) -> int:
    """Return the bytes of weights that one decode step streams.

    Tables of which a step takes single rows do not count: rotary tables, and the embedding where
    the head has a matrix of its own (it comes last). One matrix that serves both counts once.
    """
    streamed = [weight for weight in manifest.weights if weight.rope is None]
    heads = [w for w in streamed if sum(p.rows for p in w.parts) == manifest.vocab]
    return sum(byte_size(w.shape, w.dtype) for w in streamed if w not in heads[:-1])


class Traffic:
    """What a decode step of one model reads: weights, keys and values, states (and writes them)."""

    def __init__(self, manifest: Manifest) -> None:
        cache = manifest.cache
        self._weights, self._states = weight_bytes(manifest), 2 * cache.state_bytes
        groups = [group for group in cache.groups if not group.per_request]
        self._groups = [(group.window, cache.token_bytes(group)) for group in groups]

    def bytes_of(self, step: Step) -> int:
        """Return the bytes of `step`, of which every row computes one token."""
        total = self._weights + self._states * len(step.requests)
        for window, size in self._groups:
            tokens = step.ends if window is None else np.minimum(step.ends, window)
            total += int(tokens.sum()) * size
        return total
