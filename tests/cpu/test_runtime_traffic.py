"""Bytes that a decode step streams: a matrix that embeds and is the head counts once, an embedding
beside a head does not count; of keys and values, no more than a window lets it read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernelgen_runtime.artifact.manifest import CacheGroup, CacheSchema, Part, Rope, Weight
from kernelgen_runtime.launch.traffic import Traffic, weight_bytes

VOCABULARY = 1000


def matrix(name: str, rows: int, cols: int, layout: str = "rows") -> Weight:
    return Weight(name, "bfloat16", (rows, cols), layout, (Part(name, rows, cols),), 0, None)


ROTARY = Weight("rope.0", "float32", (64, 2, 8), "rows", (), 0, Rope((1.0,), 1.0, 64))
EMBED, LAYER = matrix("embed.weight", VOCABULARY, 16), matrix("layers.0.q.weight", 32, 16)
HEAD = matrix("head.weight", VOCABULARY, 16, "tiles")


@pytest.mark.parametrize(
    ("weights", "rows"),
    [((EMBED, LAYER, ROTARY), VOCABULARY + 32), ((EMBED, LAYER, HEAD, ROTARY), VOCABULARY + 32)],
    ids=["tied", "apart"],
)
def test_a_step_streams_one_matrix_of_the_vocabulary(
    weights: tuple[Weight, ...], rows: int
) -> None:
    manifest: Any = SimpleNamespace(weights=weights, vocab=VOCABULARY)
    assert weight_bytes(manifest) == rows * 16 * 2


def test_a_step_reads_windows_of_long_sequences_and_states_twice() -> None:
    groups = (
        CacheGroup("full", None, (0, 1)),
        CacheGroup("window", 100, (2,)),
        CacheGroup("states", 1, (3,), per_request=True),
    )
    cache = CacheSchema(16 * 2 * 8, groups, state_bytes=1000)  # 8 bytes a token and layer
    manifest: Any = SimpleNamespace(weights=(EMBED,), vocab=VOCABULARY, cache=cache)
    step: Any = SimpleNamespace(requests=[None, None], ends=np.array([300, 50]))
    read = 8 * (2 * (300 + 50) + (100 + 50))
    assert Traffic(manifest).bytes_of(step) == weight_bytes(manifest) + read + 2 * 2 * 1000
