"""Owns what happens before any route: keys, and the count of requests being answered."""

import hmac
import secrets
from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import Problem
from .replies import problem_reply
from .service import Service

GUARDED = "/v1/"


class Gate:
    """An ASGI application around the routes."""

    def __init__(
        self, app: ASGIApp, service: Service, keys: Iterable[bytes], tells_ids: bool
    ) -> None:
        self._app, self._service = app, service
        self._keys, self._tells_ids = tuple(keys), tells_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._tells_ids:
            send = _with_id(scope, send)
        if self._keys and self._is_guarded(scope) and not self._has_key(scope):
            refusal = Problem(401, "the API key is missing or wrong")
            await problem_reply(refusal)(scope, receive, send)
            return
        counts = scope["method"] == "POST"
        self._service.load += counts
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.load -= counts

    def _is_guarded(self, scope: Scope) -> bool:
        path: str = scope["path"]
        path = path.removeprefix(scope.get("root_path", ""))
        # A browser asks with OPTIONS before it may send the key.
        return path.startswith(GUARDED) and scope["method"] != "OPTIONS"

    def _has_key(self, scope: Scope) -> bool:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, given = value.partition(b" ")
                if scheme.lower() != b"bearer":
                    given = b""
        # Every key is compared, in constant time: the time tells nothing about any.
        return any([hmac.compare_digest(given.strip(), key) for key in self._keys])


def _with_id(scope: Scope, send: Send) -> Send:
    """Return `send` that puts the request's id on the answer: the client's, or a new one."""
    own = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
    name = own.decode("latin-1")[:128] if own else secrets.token_hex(16)
    if own is None:
        scope["headers"] = [*scope["headers"], (b"x-request-id", name.encode("latin-1"))]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["x-request-id"] = name
        await send(message)

    return sending
