"""Owns the way of a request through the server: checked, let in, queued, answered."""

import asyncio
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from ..artifact.bounded_json import Json
from .answers import whole
from .ask import Ask, Reading, check_model, is_request_id
from .bodies import read_body
from .fields import BODIES
from .job import Job
from .replies import EventStream, json_reply, watch_reader
from .service import LOG, Service
from .stream import Chunks

Rewrite = Callable[[dict[str, Json]], dict[str, Json]]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG_TEXT = 4096


async def completions(request: Request) -> Response:
    """Answer POST /v1/completions."""
    return await generate(request, COMPLETIONS)


async def chat(request: Request) -> Response:
    """Answer POST /v1/chat/completions."""
    return await generate(request, CHAT)


async def generate(request: Request, route: str, as_completion: Rewrite | None = None) -> Response:
    """Return the answer to a request of `route`. Raises what `problem_of` can tell.

    `as_completion` makes the body of a completion of a checked one.
    """
    arrived = time.perf_counter()
    service: Service = request.app.state.service
    link = service.check_well()
    body = await read_body(request, service.flags.max_body_bytes, route)
    service.note_unknown(body, BODIES[route]["properties"])
    if as_completion is not None:
        body = as_completion(body)
    reading = service.reading
    assert reading is not None
    check_model(body, reading.names)
    ticket = service.admission.enter(reading.choices(body))
    service.enter(ticket)
    job: Job | None = None
    try:
        name = request.headers.get("x-request-id", "")
        if "request_id" not in body and is_request_id(name):
            body["request_id"] = name
        ask = await _read(reading, body, route == CHAT)
        job = Job(ask, link, service.tokenizer, ticket, arrived, service.ended, service.meters.gap)
        service.enter(job)
        return await _answer(request, service, job)
    except BaseException:
        ticket.close()
        if job is not None:
            service.finish(job)
        raise
    finally:
        service.leave(ticket)


async def _answer(request: Request, service: Service, job: Job) -> Response:
    """Queue a job and return its answer; a stream takes the job over."""
    flags = service.flags
    _log(service, job)
    watch = watch_reader(request.receive, job)
    try:
        await job.begin()
        service.meters.asked(job)
        if job.ask.streams:
            cached = flags.enable_prompt_tokens_details
            chunks = Chunks(
                job, service.tokenizer, cached, flags.stream_interval, flags.response_role
            )
            return EventStream(job, chunks, lambda: service.finish(job))
        await job.finish()
    finally:
        watch.cancel()
    body = whole(job, service.tokenizer, flags.enable_prompt_tokens_details)
    service.finish(job)
    return json_reply(body)


async def _read(reading: Reading, body: dict[str, Json], is_chat: bool) -> Ask:
    """Return what is asked; what may take long happens beside the event loop."""
    prompt = body.get("prompt")
    if not is_chat and isinstance(prompt, str) and len(prompt) <= LONG_TEXT:
        return reading.ask(body, is_chat)
    return await asyncio.to_thread(reading.ask, body, is_chat)


def _log(service: Service, job: Job) -> None:
    if not service.flags.enable_log_requests:
        return
    ask, most = job.ask, service.flags.max_log_len
    LOG.info(
        "%s: %d prompt tokens, %d choices, max_tokens %s, temperature %s",
        *(job.id, job.prompt_tokens, len(job.choices)),
        *(ask.params.max_tokens, ask.params.temperature),
    )
    for prompt in ask.prompts if most else ():
        text = prompt.text if prompt.text is not None else str(list(prompt.ids[:most]))
        LOG.info("%s: prompt %r", job.id, text[:most])
