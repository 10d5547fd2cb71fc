"""Owns streamed answers: which chunks there are, and in which order."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from ..batch.logprobs import TextOf, chat_logprobs
from ..chat.delta import delta_json
from ..sample.reference import Likelihood
from ..text.tokenizer import TextTokenizer
from .answers import completion_told, ending, prompt_told, text_of, usage
from .choice import Choice, Piece
from .job import EngineLostError, Job
from .problems import problem_of

Body = dict[str, Any]
DONE = b"data: [DONE]\n\n"
_ENCODE = msgspec.json.Encoder().encode


def event(body: Body) -> bytes:
    """Return one server-sent event."""
    return b"data: " + _ENCODE(body) + b"\n\n"


class Chunks:
    """The events of one request. Iterating gives bytes; what came meanwhile comes together.

    A chat begins with the role of each choice. Then text as it comes, the last of a choice with
    its finish reason; the usage, where it was asked; `[DONE]`. An error takes the place of the
    rest.
    """

    def __init__(
        self, job: Job, tokenizer: TextTokenizer | None, cached: bool, interval: int, role: str
    ) -> None:
        self._job, self._cached, self._interval, self._role = job, cached, interval, role
        ask = job.ask
        self._spell: TextOf = text_of(tokenizer, ask.told.tokens_as_ids)
        self._head: Body = {
            "id": job.id,
            "object": "chat.completion.chunk" if ask.is_chat else "text_completion",
            "created": job.created,
            "model": ask.model,
        }
        self._usage_field = ask.told.usage_in_stream or ask.told.usage_in_chunks
        self._begun: set[Choice] = set()
        self._told: dict[Choice, int] = {}
        self._offsets: dict[Choice, int] = {}
        self._waiting: dict[Choice, list[Likelihood]] = {}

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield events until all choices have ended. Never raises for what the engine does."""
        job = self._job
        open_choices = set(job.choices)
        if job.ask.is_chat:
            yield b"".join(self._role_of(choice) for choice in job.choices)
        while open_choices:
            events: list[bytes] = []
            for choice in await job.changes():
                if choice.finish_reason == "error":
                    yield b"".join(events)
                    yield event(problem_of(EngineLostError(choice.error)).body) + DONE
                    return
                if choice.finish_reason is None and self._may_wait(choice):
                    continue
                self._told[choice] = len(choice.ids)
                events += self._events(choice)
                if choice.finish_reason is not None:
                    open_choices.discard(choice)
            if events:
                yield b"".join(events)
        if job.ask.told.usage_in_stream:
            yield event(self._head | {"choices": [], "usage": usage(job, self._cached)})
        yield DONE

    def _may_wait(self, choice: Choice) -> bool:
        """Whether more tokens shall come before these are told: never for the first."""
        told = self._told.get(choice, 0)
        return 0 < told and len(choice.ids) - told < self._interval

    def _role_of(self, choice: Choice) -> bytes:
        return self._event(
            {"index": choice.index, "delta": {"role": self._role, "content": ""}}
            | {"logprobs": None, "finish_reason": None}
        )

    def _events(self, choice: Choice) -> list[bytes]:
        piece = choice.take()
        body = self._chat(choice, piece) if self._job.ask.is_chat else self._text(choice, piece)
        if body is None:
            return []
        ask = self._job.ask
        if ask.told.token_ids or not choice.has_text:
            body["token_ids"] = [] if ask.drops_output else piece.ids
            if choice not in self._begun:
                body["prompt_token_ids"] = list(ask.prompts[choice.prompt].ids)
        self._begun.add(choice)
        return [self._event(body)]

    def _event(self, choice: Body) -> bytes:
        body = self._head | {"choices": [choice]}
        if self._job.ask.told.usage_in_chunks:
            body["usage"] = usage(self._job, self._cached)
        elif self._usage_field:
            body["usage"] = None
        return event(body)

    def _chat(self, choice: Choice, piece: Piece) -> Body | None:
        """Return a chunk of a chat; None where there is nothing to say yet."""
        ended, parser = choice.finish_reason is not None, choice.parser
        assert parser is not None
        waiting = self._waiting.setdefault(choice, [])
        waiting += piece.logprobs
        said = bool(piece.delta) or not choice.has_text
        if not said and not ended:
            return None
        logprobs = None
        if self._job.ask.params.tells_logprobs:
            logprobs = chat_logprobs(waiting, self._spell)
            waiting.clear()
        reason = parser.finish_reason(choice.finish_reason or "") if ended else None
        told = ending(choice, reason) if ended else {"finish_reason": None}
        return {
            "index": choice.index,
            "delta": delta_json(piece.delta),
            "logprobs": logprobs,
        } | told

    def _text(self, choice: Choice, piece: Piece) -> Body | None:
        """Return a chunk of a completion; None where there is nothing to say yet."""
        ask, ended = self._job.ask, choice.finish_reason is not None
        text, logprobs = piece.text, None
        waiting = self._waiting.setdefault(choice, [])
        waiting += piece.logprobs
        if ask.drops_output:
            text = ""
            waiting.clear()
        begins = ask.echo and choice not in self._begun
        before = self._job.echo_text(choice) if begins else ""
        if not (text or before or ended or not choice.has_text):
            return None
        if ask.params.tells_logprobs:
            logprobs = self._logprobs(choice, waiting, before)
        told = ending(choice) if ended else {"finish_reason": None, "stop_reason": None}
        return {"index": choice.index, "text": before + text, "logprobs": logprobs} | told

    def _logprobs(self, choice: Choice, waiting: list[Likelihood], before: str) -> Body:
        offset = self._offsets.get(choice, len(before))
        told = completion_told(waiting, self._spell, offset)
        self._offsets[choice] = offset + _length(waiting, self._spell)
        waiting.clear()
        if before and self._job.ask.params.logprobs is not None:
            prompt = prompt_told(self._job, choice, self._spell)
            told = {name: prompt[name] + told[name] for name in prompt}
        return told


def _length(told: Sequence[Likelihood], spell: TextOf) -> int:
    return sum(len(spell(one.token)) for one in told)
