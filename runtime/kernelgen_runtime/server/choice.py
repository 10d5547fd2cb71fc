"""Owns one choice on its way: ids become text, text ends at stop strings, and pieces wait here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..chat.answer import AnswerParser
from ..chat.delta import Delta
from ..sample.params import SamplingParams
from ..sample.reference import Likelihood
from ..text.detokenize import GrowingText
from .wire import First, Update


@dataclass
class Piece:
    """What has come of a choice since the last piece was taken."""

    text: str = ""
    delta: Delta = field(default_factory=Delta)
    ids: list[int] = field(default_factory=list)
    logprobs: list[Likelihood] = field(default_factory=list)


class Choice:
    """Waits for the messages about `key` (it is a `Waiter`); `changed` is called after each.

    `text` None: ids are all there is. Everything is told once: in pieces, and in the sums.
    """

    def __init__(
        self,
        key: int,
        index: int,
        prompt: int,
        params: SamplingParams,
        text: GrowingText | None,
        parser: AnswerParser | None,
        changed: Callable[["Choice"], None],
        abort: Callable[[int], None],
        gap: Callable[[float], None],
    ) -> None:
        self.key, self.index, self.prompt = key, index, prompt
        self.parser = parser
        self.ids: list[int] = []
        self.logprobs: list[Likelihood] = []
        self.masks: list[Sequence[int]] = []
        self.first: First | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error = ""
        self.refusal = ""
        self.is_lost = False
        self.is_accepted = False
        self.last_at = 0.0
        self._params, self._text = params, text
        self._changed, self._abort, self._gap = changed, abort, gap
        self._new = Piece()
        self._parser_ended = False

    @property
    def engine_params(self) -> SamplingParams:
        """What the engine gets: stop strings and bad words are text, which it does not have."""
        return replace(self._params, stop=(), bad_words=())

    @property
    def text(self) -> str:
        """All text so far that is certain."""
        return "" if self._text is None else self._text.text

    @property
    def has_text(self) -> bool:
        """Whether there is a tokenizer to make text with."""
        return self._text is not None

    def accepted(self) -> None:
        """It is queued."""
        self.is_accepted = True
        self._changed(self)

    def refused(self, message: str) -> None:
        """It cannot be served."""
        self.refusal = message
        self.end("error", None, message)

    def lost(self, message: str) -> None:
        """The engine is gone."""
        self.is_lost = True
        self.end("error", None, message)

    def end(self, reason: str, stop_reason: int | str | None = None, error: str = "") -> None:
        """End it here and now; what was held back is told."""
        if self.finish_reason is not None:
            return
        if self._text is not None:
            self._new.text += self._text.finish()
            if self._text.stopped_by is not None:
                reason, stop_reason = "stop", self._text.stopped_by
        self.finish_reason, self.stop_reason, self.error = reason, stop_reason, error
        self._changed(self)

    def updated(self, update: Update, at: float) -> None:
        """Take what a step gave."""
        if self.finish_reason is not None:
            return
        self.is_accepted = True
        if update.first is not None:
            self.first = update.first
        if self.last_at and update.ids:
            self._gap(at - self.last_at)
        self.last_at = at
        self._take(update)
        if self._text is not None and self._text.stopped_by is not None:
            self._abort(self.key)
            self.end("stop", self._text.stopped_by)
        elif update.end is not None:
            self.end(update.end.finish_reason, update.end.stop_reason, update.end.error)
        else:
            self._changed(self)

    def take(self) -> Piece:
        """Return what is new since the last call."""
        piece, self._new = self._new, Piece()
        if self.parser is not None:
            delta = (
                self.parser.push(piece.text, len(piece.ids)) if piece.ids or piece.text else Delta()
            )
            if self.finish_reason is not None and not self._parser_ended:
                self._parser_ended = True
                delta = _joined(delta, self.parser.finish())
            piece.delta = delta
        return piece

    def _take(self, update: Update) -> None:
        before = len(self.ids)
        self.ids += update.ids
        self.logprobs += update.logprobs
        self.masks += update.masks
        self._new.ids += update.ids
        self._new.logprobs += update.logprobs
        if self._text is None:
            return
        # Stop strings count from min_tokens on.
        held = max(0, min(len(update.ids), self._params.min_tokens - before))
        if held:
            self._new.text += self._text.push(update.ids[:held], may_stop=False)
        if held < len(update.ids):
            self._new.text += self._text.push(update.ids[held:])


def _joined(one: Delta, two: Delta) -> Delta:
    if not one or not two:
        return one or two
    return Delta(one.content + two.content, one.reasoning + two.reasoning, (*one.calls, *two.calls))
