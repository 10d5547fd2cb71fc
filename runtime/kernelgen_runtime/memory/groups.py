"""Owns the arithmetic of cache groups: pages a span needs, pages a window has left behind."""

from collections.abc import Sequence

from ..artifact.manifest import PAGE_TOKENS, CacheGroup


def pages_of(tokens: int) -> int:
    """Return the pages that `tokens` tokens from position 0 fill."""
    return -(-tokens // PAGE_TOKENS)


def first_live_page(group: CacheGroup, settled: int) -> int:
    """Return the first page that a token at position ≥ `settled` may still read.

    `settled` counts tokens of finished steps only: a step in flight reads from there on.
    """
    if group.window is None:
        return 0
    return max(0, settled - group.window + 1) // PAGE_TOKENS


def peak_pages(groups: Sequence[CacheGroup], tokens: int, in_flight: int) -> int:
    """Return the most pages of tokens that one request of `tokens` tokens holds in all groups.

    `in_flight` is the most tokens computed before a release: a window group needs its window and
    those, never the whole sequence.
    """
    total = 0
    for group in groups:
        if group.per_request:
            continue
        pages = pages_of(tokens)
        total += pages if group.window is None else min(pages, window_pages(group, in_flight))
    return total


def window_pages(group: CacheGroup, in_flight: int) -> int:
    """Return the most pages that a request of any length holds in a group with a window."""
    assert group.window is not None
    span = group.window - 1 + in_flight
    return (span + PAGE_TOKENS - 2) // PAGE_TOKENS + 1
