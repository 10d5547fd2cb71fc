"""Owns the token counts of running requests, by slot: a step is decided for all of them at once."""

import numpy as np
import numpy.typing as npt

from .request import Request

Counts = npt.NDArray[np.int64]


class SlotCounts:
    """int64 [slots] each; meaningless where a slot is free.

    There is no prefill and no decode: a request is `known` tokens long (ids that are still in
    flight included), of which `scheduled` were handed to steps. `arrived` of them are on the host,
    `newest` is the last of these. `limit` is the longest it may get. `tenancy` changes when a slot
    is left: rows of an older tenancy are stale. `most` is what one step may compute of it.
    """

    def __init__(self, slots: int) -> None:
        self.known, self.scheduled, self.arrived, self.newest, self.limit, self.tenancy = (
            np.zeros(slots, np.int64) for _ in range(6)
        )
        self.most = np.zeros(slots, np.int64)

    def enter(self, slot: int, request: Request, computed: int, most: int) -> None:
        """Count a request, of which `computed` tokens are there already, from now on."""
        self.most[slot] = most
        self.known[slot] = self.arrived[slot] = len(request.tokens)
        self.scheduled[slot] = computed
        self.newest[slot] = request.tokens[-1]
        self.limit[slot] = request.length_limit

    def leave(self, slot: int) -> int:
        """Free a slot; return how many of its ids are still in flight."""
        self.tenancy[slot] += 1
        return int(self.known[slot] - self.arrived[slot])

    def todo(self, slots: Counts) -> Counts:
        """Return the tokens to compute in the next step.

        The last token that a request may have is never computed, so a request whose last id is in
        flight has nothing to do.
        """
        known = self.known[slots]
        todo = np.where(known < self.limit[slots], known - self.scheduled[slots], 0)
        return np.minimum(todo, self.most[slots])
