"""Owns how much of a GPU the cache gets, and the refusal where that holds no request."""

from dataclasses import dataclass

from ..artifact.manifest import PAGE_TOKENS, CacheSchema
from ..errors import DeviceMemoryError, amount
from .groups import peak_pages
from .sizing import longest_that_fits

NO_REQUEST = (
    "no request fits; raise --gpu-memory-utilization, or lower --max-num-batched-tokens and "
    "--max-num-seqs"
)


@dataclass(frozen=True)
class Budget:
    """Bytes of a GPU: in all, free once everything but cache and graphs is there, for graphs.

    `utilization` is the share of all that may be used; the rest is for whoever else needs some.
    """

    label: str
    total: int
    free: int
    graphs: int
    utilization: float

    @property
    def cache(self) -> int:
        """What is left for the cache."""
        spared = int((1 - self.utilization) * self.total)
        return max(0, self.free - spared - self.graphs)


def budget_pages(
    schema: CacheSchema,
    budget: Budget,
    max_model_len: int,
    in_flight: int,
    max_num_seqs: int,
    may_shorten: bool = False,
) -> int:
    """Return the number of pages, the null page included.

    `max_num_seqs` requests of `max_model_len` tokens cannot hold more, so more is not taken.
    Raises DeviceMemoryError where one request does not fit; `may_shorten`: where none of one page
    does.
    """
    one = peak_pages(schema.groups, max_model_len, in_flight)
    pages = min(1 + max_num_seqs * one, budget.cache // schema.page_bytes)
    fits = longest_that_fits(schema, pages, max_model_len, in_flight)
    if fits >= (min(PAGE_TOKENS, max_model_len) if may_shorten else max_model_len):
        return pages
    needed = (1 + one) * schema.page_bytes
    advice = f"the longest that fits is --max-model-len {fits}" if fits else NO_REQUEST
    raise DeviceMemoryError(
        f"{budget.label}: {amount(budget.cache)} are left for the cache ({amount(budget.free)} of "
        f"{amount(budget.total)} are free, of which graphs take {amount(budget.graphs)} and "
        f"--gpu-memory-utilization {budget.utilization:g} spares "
        f"{amount(int((1 - budget.utilization) * budget.total))}); one request of {max_model_len} "
        f"tokens needs {amount(needed)}, {amount(needed - budget.cache)} are missing: {advice}"
    )
