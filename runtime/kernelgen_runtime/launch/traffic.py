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


def cache_bytes(manifest: Manifest, step: Step) -> int:
    """Return the bytes of keys and values that `step` reads, and of states, read and written."""
    total = 2 * manifest.cache.state_bytes * len(step.requests)
    for group in manifest.cache.groups:
        if group.per_request:
            continue
        limit = group.window or manifest.max_sequence_tokens
        tokens = np.minimum(step.ends, limit).sum()
        total += int(tokens) * manifest.cache.token_bytes(group)
    return total
