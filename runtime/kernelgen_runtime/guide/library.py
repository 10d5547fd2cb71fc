"""Owns what is used of the grammar library, llguidance, and asking for it where it is missing."""

from collections.abc import Sequence
from typing import Any, Protocol

from ..errors import RequestError


class Matcher(Protocol):
    """A grammar and how far a text is in it. Its faults are states, never exceptions."""

    def consume_token(self, token: int, /) -> bool:
        """Go on by a token; False where it does not fit, or nothing did before."""

    def is_stopped(self) -> bool:
        """Whether nothing can follow but an end."""

    def is_error(self) -> bool:
        """Whether it has failed for good."""

    def get_error(self) -> str:
        """Say why; "" where it has not failed."""

    def unsafe_compute_mask_ptr(self, pointer: int, size: int, /) -> None:
        """Write a bit for each token to `size` bytes at `pointer`."""

    def deep_copy(self) -> "Matcher":
        """Return another one at the same place."""


class Tokens(Protocol):
    """The tokenizer as the library sees it."""

    def tokenize_str(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the ids of `text`."""

    def is_special_token(self, token: int, /) -> bool:
        """Whether a token is no text."""

    def decode_str(self, tokens: Sequence[int], /) -> str:
        """Return the text of ids."""


def load_library() -> Any:
    """Return the module. Raises RequestError where it is not installed."""
    try:
        import llguidance
    except ImportError:
        raise RequestError(
            "structured output needs the package llguidance: `pip install llguidance` "
            "(it comes with the extra [structured])"
        ) from None
    return llguidance
