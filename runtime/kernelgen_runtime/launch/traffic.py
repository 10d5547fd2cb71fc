"""Owns the bytes a decode step has to read: what achieved bandwidth is computed from."""

from ..artifact.manifest import Manifest
from ..buffers import byte_size
from ..schedule.step import Step


def weight_bytes(manifest: Manifest) -> int:
    """Return the bytes of weights that one decode step streams.

    Tables of which a step takes single rows do not count: rotary tables, and a row-major matrix
    with a row a vocabulary entry (the embedding, where the head has its own copy).
    """
    total = 0
    for weight in manifest.weights:
        is_table = weight.layout == "rows" and len(weight.shape) == 2
        if weight.rope is None and not (is_table and weight.shape[0] == manifest.vocab):
            total += byte_size(weight.shape, weight.dtype)
    return total


def cache_bytes(manifest: Manifest, step: Step) -> int:
    """Return the bytes of keys and values that `step` reads."""
    total = 0
    for group in manifest.cache.groups:
        limit = group.window or manifest.max_sequence_tokens
        tokens = sum(min(row.start + row.count, limit) for row in step.rows)
        total += tokens * manifest.cache.token_bytes(group)
    return total
