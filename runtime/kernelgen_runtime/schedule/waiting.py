"""Owns the queue of waiting requests, in the order in which they are admitted."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from .limits import Policy
from .request import Request, Status

Rank = tuple[int, int]


class WaitingQueue:
    """Requests by rank: a preempted request goes back to where it came from."""

    def __init__(self, policy: Policy) -> None:
        self._by_priority = policy is Policy.PRIORITY
        self._heap: list[tuple[Rank, Request]] = []
        self._gone = 0

    def __len__(self) -> int:
        return len(self._heap) - self._gone

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no order."""
        return (request for _, request in self._heap if request.status is not Status.FINISHED)

    def rank(self, request: Request) -> Rank:
        """Return what requests are ordered by: the lowest is first and preempted last."""
        return (request.priority if self._by_priority else 0, request.arrival)

    def push(self, request: Request) -> None:
        """Queue a request."""
        heappush(self._heap, (self.rank(request), request))

    def first(self) -> Request | None:
        """Return the next request, None where nobody waits."""
        while self._heap and self._heap[0][1].status is Status.FINISHED:
            heappop(self._heap)
            self._gone -= 1
        return self._heap[0][1] if self._heap else None

    def pop(self) -> None:
        """Remove what `first` returned."""
        heappop(self._heap)

    def finished(self) -> None:
        """Note that one of the waiting requests has ended: its entry will go by and by."""
        self._gone += 1
        if self._gone > len(self._heap) // 2 + 16:
            self._heap = [entry for entry in self._heap if entry[1].status is not Status.FINISHED]
            heapify(self._heap)
            self._gone = 0
