"""Owns the limits of HTTP itself: a head that is too long or too slow is refused early."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 30.0


def limited_protocol(max_header_bytes: int) -> type[HttpToolsProtocol]:
    """Return a protocol whose requests have heads of at most so many bytes, within 30 s."""

    class Limited(HttpToolsProtocol):
        _head_bytes = 0
        _in_head = True
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._in_head:
                if not self._head_bytes and self._timer is None:
                    self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)
                self._head_bytes += len(data)
            super().data_received(data)
            if self._in_head and self._head_bytes > max_header_bytes:
                self._refuse()

        def on_message_begin(self) -> None:
            self._in_head = True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            self._in_head, self._head_bytes = False, 0
            self._stop_timer()
            if size > max_header_bytes:
                self._refuse()
                return
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_head = True

        def _refuse(self) -> None:
            self._answer(431, b"Request Header Fields Too Large")

        def _too_slow(self) -> None:
            self._timer = None
            if self._in_head and self._head_bytes:
                self._answer(408, b"Request Timeout")

        def _answer(self, status: int, words: bytes) -> None:
            if not self.transport.is_closing():
                head = b"HTTP/1.1 %d %b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                self.transport.write(head % (status, words))
                self.transport.close()

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Limited
