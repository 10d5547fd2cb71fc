"""Owns who may come in: requests and prompt tokens that are under way, against their limits."""

from dataclasses import dataclass, field

RETRY_AFTER_SECONDS = 1


class OverloadedError(Exception):
    """The server is full; `reason` is what its counter is called by."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class Admission:
    """Choices and prompt tokens of unfinished requests. Everything happens on one event loop.

    A place is taken when a request arrives, before anything is rendered, so that a burst cannot
    pass together; it is given back when the choice ends, however it ends.
    """

    max_requests: int | None = None
    max_tokens: int | None = None
    requests: int = 0
    tokens: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    closed: bool = False
    """whether the server is about to end"""

    def enter(self, choices: int) -> "Ticket":
        """Take `choices` places. Raises OverloadedError where they are not there."""
        if self.closed:
            raise self._refusal("the server is shutting down", "shutdown")
        if self.max_requests is not None and self.requests + choices > self.max_requests:
            later = choices <= self.max_requests
            raise self._refusal(
                f"{self.requests} requests are under way, {choices} more would be above the limit "
                f"of {self.max_requests}; {'try again' if later else 'ask for fewer choices'}",
                "num_queued_reqs",
            )
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            raise self._refusal(
                f"{self.tokens} prompt tokens wait to be computed, the limit is {self.max_tokens}; "
                "try again",
                "num_queued_tokens",
            )
        self.requests += choices
        return Ticket(self, choices)

    def _refusal(self, message: str, reason: str) -> OverloadedError:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        return OverloadedError(message, reason)


@dataclass(eq=False)
class Ticket:
    """The places of one request, and what its prompts add. Giving back twice does nothing."""

    admission: Admission
    choices: int
    tokens: int = 0

    def charge(self, tokens: int) -> None:
        """Count the prompt tokens, once they are known."""
        self.tokens += tokens
        self.admission.tokens += tokens

    def computed(self, tokens: int) -> None:
        """Give prompt tokens back: their first token is there."""
        tokens = min(tokens, self.tokens)
        self.tokens -= tokens
        self.admission.tokens -= tokens

    def leave(self) -> None:
        """Give one place back."""
        if self.choices:
            self.choices -= 1
            self.admission.requests -= 1

    def close(self) -> None:
        """Give everything back."""
        self.computed(self.tokens)
        while self.choices:
            self.leave()
