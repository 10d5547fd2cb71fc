"""Owns one prompt on its way: its request, the text it has so far, and its result."""

from collections.abc import Iterator
from dataclasses import dataclass

from .engine import Engine
from .errors import LaunchError
from .sample.mask import SamplingMask
from .sample.reference import Likelihood
from .schedule.request import Request, Timings
from .text.detokenize import GrowingText


@dataclass(frozen=True)
class Output:
    """What one prompt gave. `text` is None where the weights came without a tokenizer."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: str
    stop_reason: int | str | None
    timings: Timings
    cached_tokens: int = 0
    """tokens of the prompt that earlier requests had computed"""
    logprobs: tuple[Likelihood, ...] | None = None
    """of each generated token, where they were asked"""
    prompt_logprobs: tuple[Likelihood | None, ...] | None = None
    """of each prompt token, where they were asked; nothing is said of the first"""
    kept: SamplingMask | None = None
    """what each token was chosen from, where that was asked"""
    index: int = 0
    """which of the n choices of its prompt it is"""
    error: str = ""
    """what went wrong with this prompt alone; its finish reason is "error" then"""


class Generation:
    """A request and its growing text. Iterating runs the engine and yields text pieces."""

    def __init__(
        self, engine: Engine, request: Request, text: GrowingText | None, index: int = 0
    ) -> None:
        self.request, self.index = request, index
        self._engine, self._text = engine, text
        self._pushed = request.prompt_tokens

    @property
    def is_finished(self) -> bool:
        """Whether no more tokens will come."""
        return self.request.finish_reason is not None

    def __iter__(self) -> Iterator[str]:
        """Queue the request and run it, alone or beside others; leaving early aborts it.

        Raises LaunchError where its logits are NaN.
        """
        self.begin()
        try:
            while not self.is_finished:
                if self.request in self._engine.step() and (piece := self.advance()):
                    yield piece
            if rest := self.finish():
                yield rest
        finally:
            self.abort()
        if self.request.error:
            raise LaunchError(self.request.error)

    def begin(self) -> None:
        """Queue the request; whoever steps the engine calls `advance` then."""
        self._engine.add(self.request)

    def advance(self) -> str:
        """Take the ids that came since the last call; end the request at a stop string."""
        request, first = self.request, self._pushed
        self._pushed = len(request.tokens)
        if self._text is None:
            return ""
        held = max(first, min(self._pushed, request.prompt_tokens + request.params.min_tokens))
        early = self._text.push(request.tokens[first:held], may_stop=False) if held > first else ""
        return early + self._shown(self._text.push(request.tokens[held:]))

    def finish(self) -> str:
        """Return the text that was held back; the request has ended."""
        if self._text is None:
            return ""
        # Ids that came while another request's step failed were seen by nobody yet.
        late = self.advance() if self._pushed < len(self.request.tokens) else ""
        return late + self._shown(self._text.finish())

    def abort(self, reason: str = "abort") -> None:
        """End the request, if it has not ended."""
        if not self.is_finished:
            self._engine.abort(self.request, reason)

    def output(self) -> Output:
        """Return the result; complete once the request has ended."""
        request = self.request
        return Output(
            prompt_ids=tuple(request.tokens[: request.prompt_tokens]),
            token_ids=tuple(request.output_ids),
            text=None if self._text is None else self._text.text,
            finish_reason=request.finish_reason or "",
            stop_reason=request.stop_reason,
            timings=request.timings,
            cached_tokens=request.cached_tokens,
            logprobs=self._logprobs(),
            prompt_logprobs=self._prompt_logprobs(),
            kept=self._kept(),
            index=self.index,
            error=request.error,
        )

    def _logprobs(self) -> tuple[Likelihood, ...] | None:
        # A token that came while the request was ended elsewhere is told nowhere.
        told = tuple(self.request.logprobs[: len(self.request.output_ids)])
        return told if self.request.params.tells_logprobs else None

    def _prompt_logprobs(self) -> tuple[Likelihood | None, ...] | None:
        asked = self.request.params.prompt_logprobs is not None
        return (None, *self.request.prompt_logprobs) if asked else None

    def _kept(self) -> SamplingMask | None:
        if not self.request.params.return_sampling_mask:
            return None
        return SamplingMask.of(self.request.masks[: len(self.request.output_ids)])

    def _shown(self, piece: str) -> str:
        assert self._text is not None
        if self._text.stopped_by is not None:
            self.abort()
            self.request.finish_reason = "stop"
            self.request.stop_reason = self._text.stopped_by
        return piece
