"""Owns text that grows token by token: never half a character, never past a stop string."""

from collections.abc import Sequence
from typing import Protocol

CONTEXT_TOKENS = 6
_HALF = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """Turns ids into text."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`."""


class GrowingText:
    """The text of one request. `push` ids as they come; `text` is what may be shown so far.

    A few prompt ids give context (some decoders write a word's leading space only after another
    word). With stop strings, as many characters are held back as one of them could still claim.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[int],
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._decoder = decoder
        self._skip = skip_special_tokens
        self._ids = list(prompt_ids[-CONTEXT_TOKENS:])
        self._context_start, self._read = 0, len(self._ids)
        self._stop, self._include_stop = tuple(stop), include_stop
        self._longest = max((len(text) for text in stop), default=1)
        self._decoded = ""
        self.stopped_by: str | None = None
        self.text = ""

    def push(self, ids: Sequence[int], *, may_stop: bool = True) -> str:
        """Take new ids; return the text that became certain. Nothing after a stop string counts.

        `may_stop` False: a stop string that ends in these ids is ordinary text.
        """
        if self.stopped_by is not None:
            return ""
        self._ids.extend(ids)
        grown = self._decode_new()
        return self._advance(grown, self._longest - 1, may_stop)

    def finish(self) -> str:
        """Return what was held back: no more ids will come."""
        if self.stopped_by is not None:
            return ""
        before, now = self._window()
        grown = now[len(before) :]
        self._read = len(self._ids)
        return self._advance(grown, 0)

    def _window(self) -> tuple[str, str]:
        ids = self._ids[self._context_start :]
        before = self._decoder.decode(ids[: self._read - self._context_start], self._skip)
        return before, self._decoder.decode(ids, self._skip)

    def _decode_new(self) -> str:
        before, now = self._window()
        if len(now) <= len(before) or now.endswith(_HALF):
            return ""  # the last token holds the first bytes of a character
        self._context_start, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _advance(self, grown: str, held_back: int, may_stop: bool = True) -> str:
        before = len(self._decoded)
        self._decoded += grown
        stop = self._first_stop(before) if may_stop else None
        end = max(len(self.text), len(self._decoded) - held_back)
        if stop is not None:
            start, self.stopped_by = stop
            end = start + (len(self.stopped_by) if self._include_stop else 0)
        shown, self.text = self._decoded[len(self.text) : end], self._decoded[:end]
        return shown

    def _first_stop(self, before: int) -> tuple[int, str] | None:
        """Return place and text of the stop string that ends first; none ended in `before`."""
        found = [
            (at + len(text), at, text)
            for text in self._stop
            if (at := self._decoded.find(text, max(0, before - len(text) + 1))) >= 0
        ]
        return min(found)[1:] if found else None
