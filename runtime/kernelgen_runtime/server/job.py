"""Owns one request on its way through the engine: its choices, and waiting for them."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from ..sample.params import SamplingParams
from ..text.detokenize import GrowingText
from ..text.tokenizer import TextTokenizer
from .admission import Ticket
from .ask import Ask
from .choice import Choice
from .link import EngineLink
from .wire import Submit


class RefusedError(Exception):
    """The engine does not take the request; the message is for the client."""


class EngineLostError(Exception):
    """The engine has gone, or a step of the request has failed."""


class Gaps(Protocol):
    """Who counts the time between two tokens."""

    def observe(self, value: float) -> None:
        """Count one, in seconds."""


class Job:
    """All choices of one request. Whoever makes one must `close` it, however it ends."""

    def __init__(
        self,
        ask: Ask,
        link: EngineLink,
        tokenizer: TextTokenizer | None,
        ticket: Ticket,
        arrived: float,
        ended: Callable[["Job", Choice], None],
        gaps: Gaps,
    ) -> None:
        self.ask, self.arrived = ask, arrived
        self.created = int(time.time())
        self.id = (
            f"{'chatcmpl' if ask.is_chat else 'cmpl'}-{ask.request_id or secrets.token_hex(16)}"
        )
        self.choices: list[Choice] = []
        self._link, self._ticket, self._ended = link, ticket, ended
        self._tokenizer = tokenizer
        self._awake = asyncio.Event()
        self._unread: dict[Choice, None] = {}
        self._counted: set[Choice] = set()
        decoder = tokenizer if ask.prepared is None else ask.prepared.decoder
        params = ask.params
        for at, prompt in enumerate(ask.prompts):
            for choice_params in _each(params):
                text = None
                if tokenizer is not None and decoder is not None:
                    cut, skip = params.include_stop_str_in_output, params.skip_special_tokens
                    text = GrowingText(decoder, prompt.ids, params.stop, cut, skip)
                index = len(self.choices)
                choice = Choice(
                    *(link.new_key(), index, at, choice_params, text, ask.parser()),
                    changed=self._note,
                    abort=link.abort,
                    gap=gaps.observe,
                )
                self.choices.append(choice)
        ticket.charge(self.prompt_tokens)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; choices share them."""
        return sum(len(prompt.ids) for prompt in self.ask.prompts)

    @property
    def is_finished(self) -> bool:
        """Whether no choice has anything to come."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def echo_text(self, choice: Choice) -> str:
        """Return the text of a choice's prompt: as it was given, or that of its ids."""
        prompt = self.ask.prompts[choice.prompt]
        if prompt.text is not None or self._tokenizer is None:
            return prompt.text or ""
        skip = self.ask.params.skip_special_tokens
        return self._tokenizer.decode(prompt.ids, skip_special_tokens=skip)

    async def begin(self) -> None:
        """Queue all choices and wait until the engine has taken them.

        Raises RefusedError where it does not take one, EngineDeadError, EngineLostError.
        """
        ask = self.ask
        for choice in self.choices:
            ids = list(ask.prompts[choice.prompt].ids)
            params = choice.engine_params
            self._link.submit(Submit(choice.key, ids, params, ask.priority, ask.cache_salt), choice)
        while not all(c.is_accepted or c.finish_reason is not None for c in self.choices):
            await self._changed()
        for choice in self.choices:
            if choice.refusal:
                raise RefusedError(choice.refusal)
        self.raise_lost()

    async def finish(self) -> None:
        """Wait for the end of all choices. Raises EngineLostError where one has an error."""
        while not self.is_finished:
            await self._changed()
        for choice in self.choices:
            if choice.finish_reason == "error":
                raise EngineLostError(choice.error)

    async def changes(self) -> list[Choice]:
        """Wait for news; return the choices that have some, in order of their index."""
        while not self._unread:
            await self._changed()
        unread, self._unread = self._unread, {}
        return sorted(unread, key=lambda choice: choice.index)

    def raise_lost(self) -> None:
        """Raise EngineLostError where a choice ended with an error."""
        for choice in self.choices:
            if choice.finish_reason == "error":
                raise EngineLostError(choice.error)

    def abort(self) -> None:
        """End what has not ended, with the reason "abort"."""
        for choice in self.choices:
            if choice.finish_reason is None:
                self._link.abort(choice.key)
                choice.end("abort")

    def close(self) -> None:
        """Let go of everything that it holds."""
        self.abort()
        self._ticket.close()

    async def _changed(self) -> None:
        await self._awake.wait()
        self._awake.clear()

    def _note(self, choice: Choice) -> None:
        if choice.first is not None and choice not in self._counted:
            self._counted.add(choice)
            if all(c in self._counted for c in self._beside(choice)):
                self._ticket.computed(len(self.ask.prompts[choice.prompt].ids))
        if choice.finish_reason is not None:
            self._ticket.leave()
            self._ended(self, choice)
        if choice.ids or choice.finish_reason is not None:
            self._unread[choice] = None
        self._awake.set()

    def _beside(self, choice: Choice) -> Iterator[Choice]:
        return (other for other in self.choices if other.prompt == choice.prompt)


def _each(params: SamplingParams) -> Iterator[SamplingParams]:
    """Yield the parameters of every choice of a prompt."""
    if params.n == 1:
        yield params
        return
    seed = secrets.randbits(63) if params.seed is None else params.seed
    for index in range(params.n):
        yield params.choice(index, seed)
