"""Owns HTTP answers: JSON, problems, and streams of events that end when their reader goes."""

import asyncio
from collections.abc import AsyncIterable, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .job import Job
from .problems import Problem

_ENCODE = msgspec.json.Encoder().encode


def json_reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return an answer of JSON."""
    return Response(_ENCODE(body), status, headers, "application/json")


def problem_reply(problem: Problem) -> Response:
    """Return the answer that tells a problem."""
    return json_reply(problem.body, problem.status, problem.headers)


class EventStream(Response):
    """Server-sent events. `ended` is called once, however it ends; a reader that goes away aborts
    the job."""

    media_type = "text/event-stream"

    def __init__(self, job: Job, events: AsyncIterable[bytes], ended: Callable[[], None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._job, self._events, self._ended = job, events, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, as fast as the reader takes it."""
        watch = watch_reader(receive, self._job)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.cancel()
            self._ended()


def watch_reader(receive: Receive, job: Job) -> asyncio.Task[None]:
    """Return a task that aborts `job` when its reader goes away; cancel it when done."""
    return asyncio.get_running_loop().create_task(_abort_when_gone(receive, job))


async def _abort_when_gone(receive: Receive, job: Job) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    job.abort()
