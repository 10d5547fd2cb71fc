"""Owns filling the rows of many guides at once, on as many threads as it is worth."""

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from .guide import Bits, Guide

WORTH_THREADS = 4
"""rows below which starting threads costs more than it saves"""
MAX_THREADS = 8


def fill_all(guides: Sequence[Guide | None], bits: Bits) -> None:
    """Write a row of `bits` int32 [len(guides), words] for each guide; None lets all through."""
    bits[:] = -1
    open_rows = [(i, g) for i, g in enumerate(guides) if g is not None and not g.error]
    library = sys.modules.get("llguidance")
    of_library = library is not None and all(
        isinstance(guide.matcher, library.LLMatcher) for _, guide in open_rows
    )
    if len(open_rows) < WORTH_THREADS or not of_library:
        for i, guide in open_rows:
            guide.fill(bits[i])
        return
    rows = [(guide.matcher, i) for i, guide in open_rows]
    try:
        _executor(library).unsafe_compute_mask_ptr(
            rows, bits.ctypes.data, bits.shape[1] * bits.itemsize, len(bits)
        )
    except (ValueError, RuntimeError):  # one of them has failed: it is found alone
        for i, guide in open_rows:
            guide.fill(bits[i])
        return
    for i, guide in open_rows:
        guide.note_fault()
        if guide.error:
            bits[i] = -1


@cache
def _executor(library: Any) -> Any:
    return library.LLExecutor(num_threads=min(MAX_THREADS, os.cpu_count() or 1))
