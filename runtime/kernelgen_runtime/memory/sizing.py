"""Owns how large the cache is: pages from bytes, and the refusal where one request cannot fit."""

from ..artifact.manifest import PAGE_TOKENS, CacheSchema
from ..errors import CapacityError
from .groups import peak_pages

DEFAULT_BYTES = 1 << 30


def cache_pages(
    schema: CacheSchema,
    memory_bytes: int | None,
    max_model_len: int,
    in_flight: int,
    max_num_seqs: int = 1,
    may_shorten: bool = False,
) -> int:
    """Return the number of pages, the null page included.

    `memory_bytes` None gives `max_num_seqs` requests of `max_model_len` tokens their pages as far
    as 1 GiB goes, and one request in any case; memory is taken only as pages are written.
    `in_flight` is the most tokens of one request computed at once. Raises CapacityError where one
    request does not fit; `may_shorten`: where a request of one page does not.
    """
    one = peak_pages(schema.groups, max_model_len, in_flight)
    needed = 1 + one
    if memory_bytes is None:
        pages = min(1 + max_num_seqs * one, DEFAULT_BYTES // schema.page_bytes)
        pages = pages if may_shorten else max(needed, pages)
    else:
        pages = memory_bytes // schema.page_bytes
    fits = longest_that_fits(schema, pages, max_model_len, in_flight)
    if fits < (min(PAGE_TOKENS, max_model_len) if may_shorten else max_model_len):
        advice = f"the longest that fits is --max-model-len {fits}" if fits else "none fits"
        advice += "" if memory_bytes is None else "; or raise --kv-cache-memory-bytes"
        raise CapacityError(
            f"cache memory of {memory_bytes} bytes is {pages} pages, one request of "
            f"{max_model_len} tokens needs {needed} ({needed * schema.page_bytes} bytes); {advice}"
        )
    return pages


def longest_that_fits(schema: CacheSchema, pages: int, high: int, in_flight: int) -> int:
    """Return the longest request, at most `high` tokens, that `pages` pages hold; 0 if none."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if 1 + peak_pages(schema.groups, middle, min(in_flight, middle)) <= pages:
            low = middle
        else:
            high = middle - 1
    return low
