"""Owns the API process's end of the connection: messages out, messages in to who waits."""

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from .wire import (
    VERSION,
    Abort,
    Accepted,
    Close,
    Dead,
    EngineOptions,
    Facts,
    Load,
    Ping,
    Pong,
    Ready,
    Refused,
    Reset,
    Splitter,
    Start,
    Stepped,
    Submit,
    ToEngine,
    Update,
    framed,
    read_to_api,
)


class EngineDeadError(Exception):
    """The engine process has ended or does not answer as it should; `exit_code` is for ours."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Waiter(Protocol):
    """Who waits for the messages about one key. The calls return at once and raise nothing."""

    def accepted(self) -> None:
        """It is queued."""

    def refused(self, message: str) -> None:
        """It cannot be served."""

    def updated(self, update: Update, at: float) -> None:
        """Tokens came; `at` is when the engine said so."""

    def lost(self, message: str) -> None:
        """The engine is gone."""


class EngineLink(asyncio.Protocol):
    """The engine, to the API process. `load` is how it was after its last step.

    `ended` is done once the engine is gone, with the reason.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.facts: Facts | None = None
        self.load = Load()
        self.ready: asyncio.Future[Facts] = loop.create_future()
        self.ended: asyncio.Future[EngineDeadError] = loop.create_future()
        self.on_step: Callable[[Stepped], None] = lambda stepped: None
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._splitter = Splitter()
        self._waiters: dict[int, Waiter] = {}
        self._pong: asyncio.Future[None] | None = None
        self._keys = itertools.count(1)

    @classmethod
    async def connect(cls, connection: socket.socket, options: EngineOptions) -> "EngineLink":
        """Return a link over a connected socket; the engine has been told to start."""
        loop = asyncio.get_running_loop()
        link = cls(loop)
        await loop.create_unix_connection(lambda: link, sock=connection)
        link._send(Start(VERSION, options))
        return link

    @property
    def is_ready(self) -> bool:
        """Whether requests can be served."""
        return self.facts is not None and not self.ended.done()

    @property
    def open_requests(self) -> int:
        """Choices that somebody waits for."""
        return len(self._waiters)

    def new_key(self) -> int:
        """Return a key that was never given before."""
        return next(self._keys)

    def submit(self, message: Submit, waiter: Waiter) -> None:
        """Send a request. Raises EngineDeadError where there is no engine any more."""
        if self.ended.done():
            raise self.ended.result()
        self._waiters[message.key] = waiter
        self._send(message)

    def abort(self, key: int) -> None:
        """Forget a request, wherever it is."""
        if self._waiters.pop(key, None) is not None:
            self._send(Abort([key]))

    def reset(self) -> None:
        """Let the engine forget all known prefixes."""
        self._send(Reset())

    def ping(self) -> "asyncio.Future[None]":
        """Ask the engine whether it is there; what is returned is done once it has answered."""
        if self._pong is None or self._pong.done():
            self._pong = self._loop.create_future()
            self._send(Ping())
        return self._pong

    def give_up(self, message: str) -> None:
        """Count the engine as dead: who waits is told so."""
        self._end(EngineDeadError(message))

    def close(self) -> None:
        """End the connection, and the engine with it."""
        self._send(Close())
        if self._transport is not None:
            self._transport.close()

    def _send(self, message: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(message))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Hand on what came."""
        try:
            for payload in self._splitter.feed(data):
                self._handle(read_to_api(payload))
        except (msgspec.MsgspecError, ValueError) as error:
            self._end(EngineDeadError(f"the engine sent what is no message ({error})"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine process has gone without a word."""
        self._end(EngineDeadError("the engine process has ended"))

    def _handle(self, message: object) -> None:
        match message:
            case Stepped():
                self.load = message.load
                for update in message.updates:
                    self._update(update, message.at)
                self.on_step(message)
            case Accepted():
                for key in message.keys:
                    if (waiter := self._waiters.get(key)) is not None:
                        waiter.accepted()
            case Refused():
                if (waiter := self._waiters.pop(message.key, None)) is not None:
                    waiter.refused(message.message)
            case Pong():
                if self._pong is not None and not self._pong.done():
                    self._pong.set_result(None)
            case Ready():
                self._take_ready(message)
            case Dead():
                self._end(EngineDeadError(message.message, message.exit_code))

    def _update(self, update: Update, at: float) -> None:
        waiter = self._waiters.get(update.key)
        if waiter is None:
            return  # it was aborted meanwhile
        if update.end is not None:
            del self._waiters[update.key]
        waiter.updated(update, at)

    def _take_ready(self, message: Ready) -> None:
        if message.version != VERSION:
            self._end(EngineDeadError(f"the engine speaks version {message.version}"))
            return
        self.facts = message.facts
        if not self.ready.done():
            self.ready.set_result(message.facts)

    def _end(self, error: EngineDeadError) -> None:
        if self.ended.done():
            return
        self.ended.set_result(error)
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # it may be that nobody asks
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.lost(str(error))
        if self._transport is not None:
            self._transport.abort()
