"""Owns the small routes: models, tokens, health, metrics, and what a server says of itself."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ..errors import shown
from .ask import Reading, UnknownModelError, check_model
from .bodies import read_body
from .faults import FieldError
from .metrics import CONTENT_TYPE
from .openapi import openapi
from .page import CONTENT_SECURITY_POLICY, page
from .replies import json_reply
from .service import Service, State


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def health(request: Request) -> Response:
    """Answer 200 where requests can be served, else 503."""
    return Response(status_code=200 if _service(request).state is State.READY else 503)


async def metrics(request: Request) -> Response:
    """Answer with everything that is counted."""
    numbers = _service(request).numbers
    return Response(
        b"" if numbers is None else numbers.text(), headers={"content-type": CONTENT_TYPE}
    )


async def version(request: Request) -> Response:
    """Answer with the version of the build and its name."""
    facts = _service(request).facts
    return json_reply(
        {"version": facts.version if facts else "", "model": facts.name if facts else ""}
    )


async def load(request: Request) -> Response:
    """Answer with the number of requests that are being answered."""
    return json_reply({"server_load": _service(request).load})


async def models(request: Request) -> Response:
    """Answer with all names of the model."""
    service = _service(request)
    service.check_well()
    return json_reply({"object": "list", "data": [_card(service, name) for name in service.names]})


async def model(request: Request) -> Response:
    """Answer with one name of the model."""
    service = _service(request)
    service.check_well()
    name = request.path_params["name"]
    if name not in service.names:
        raise UnknownModelError(f"model {shown(name)} does not exist")
    return json_reply(_card(service, name))


def _card(service: Service, name: str) -> dict[str, Any]:
    facts = service.facts
    return {
        "id": name,
        "object": "model",
        "created": int(service.started),
        "owned_by": "kernelgen",
        "root": facts.name if facts else name,
        "parent": None,
        "max_model_len": facts.max_model_len if facts else None,
        "permission": [],
    }


async def tokenize(request: Request) -> Response:
    """Answer with the ids of a text or of a conversation."""
    service = _service(request)
    service.check_well()
    body = await read_body(request, service.flags.max_body_bytes, "/tokenize")
    body = {name: value for name, value in body.items() if value is not None}
    reading = service.reading
    assert reading is not None
    check_model(body, reading.names)
    if ("prompt" in body) == ("messages" in body):
        raise FieldError("prompt: give either it or messages", "prompt")
    ids = await asyncio.to_thread(_ids, reading, body)
    told: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": reading.max_model_len,
        "tokens": ids,
    }
    told["token_strs"] = None
    if body.get("return_token_strs") is True and reading.tokenizer is not None:
        told["token_strs"] = [reading.tokenizer.decode([i], skip_special_tokens=False) for i in ids]
    return json_reply(told)


def _ids(reading: Reading, body: dict[str, Any]) -> list[int]:
    if "prompt" in body:
        return reading.encode(body["prompt"], body.get("add_special_tokens", True))
    if reading.front is None:
        raise FieldError("messages: there is no chat template here", "messages")
    return list(reading.front.prepare(body).prompt_ids)


async def detokenize(request: Request) -> Response:
    """Answer with the text of ids."""
    service = _service(request)
    service.check_well()
    body = await read_body(request, service.flags.max_body_bytes, "/detokenize")
    reading, facts = service.reading, service.facts
    assert reading is not None and facts is not None
    check_model(body, reading.names)
    ids: list[int] = body["tokens"]  # type: ignore[assignment]
    bad = [i for i in ids if i >= facts.vocab]
    if bad:
        raise FieldError(f"tokens: must be below {facts.vocab}, one is {bad[0]}", "tokens")
    if reading.tokenizer is None:
        raise FieldError("tokens: there is no tokenizer here", "tokens")
    text = await asyncio.to_thread(reading.tokenizer.decode, ids, False)
    return json_reply({"prompt": text})


async def described(request: Request) -> Response:
    """Answer with the OpenAPI description of all routes."""
    return json_reply(openapi(_service(request).flags.enable_scale_out))


async def status_page(request: Request) -> Response:
    """Answer with the page for people."""
    headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "cache-control": "no-store"}
    return HTMLResponse(page(_service(request)), headers=headers)
