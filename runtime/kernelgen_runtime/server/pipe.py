"""Owns the engine's end of the connection: reads what is there, writes what the socket takes."""

import select
import socket
from contextlib import suppress

from .wire import Splitter, ToApi, ToEngine, framed, read_to_engine

CHUNK = 1 << 18


class PipeClosedError(Exception):
    """The API process is gone."""


class EnginePipe:
    """Messages over a connected stream socket. `send` and `receive` return at once.

    What the API process does not take waits here, and it is bounded by what its requests may
    generate: the engine never stands still for a reader.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._splitter = Splitter()
        self._unsent = bytearray()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not taken yet."""
        return len(self._unsent)

    def send(self, message: ToApi) -> None:
        """Send a message, or as much of it as the socket takes now. Raises PipeClosedError."""
        self._unsent += framed(message)
        self._flush()

    def receive(self, wait: float | None) -> list[ToEngine]:
        """Return the messages that are there, after waiting up to `wait` seconds for the first.

        None waits until there is one or `wake` is called. Raises PipeClosedError, and RequestError
        for a message that is none.
        """
        writers = [self._socket] if self._unsent else []
        readable, writable, _ = select.select([self._socket, self._wake_reader], writers, [], wait)
        if writable:
            self._flush()
        if self._wake_reader in readable:
            self._wake_reader.recv(CHUNK)
        messages: list[ToEngine] = []
        while self._socket in readable:
            try:
                data = self._socket.recv(CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                raise PipeClosedError
            messages += map(read_to_engine, self._splitter.feed(data))
            if len(data) < CHUNK:
                break
        return messages

    def wake(self) -> None:
        """Let a `receive` that waits return; may be called from any thread."""
        with suppress(BlockingIOError):  # it has been woken often enough
            self._wake_writer.send(b"\0")

    def finish(self, seconds: float) -> None:
        """Try for up to `seconds` to send what is left."""
        self._socket.settimeout(seconds)
        with suppress(OSError):
            self._socket.sendall(self._unsent)
        self._unsent.clear()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(memoryview(self._unsent)[:CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            raise PipeClosedError from None
