"""Owns the routes of a disaggregated deployment: text to ids, ids to ids, ids to text."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..artifact.bounded_json import Json
from .bodies import read_body
from .faults import FieldError
from .generate import CHAT, COMPLETIONS, generate
from .replies import json_reply
from .service import Service

RENDER, DERENDER, GENERATE = "/render", "/derender", "/inference/v1/generate"


async def render(request: Request) -> Response:
    """Answer with the prompts of a chat or completion, as ids; nothing is generated."""
    service: Service = request.app.state.service
    service.check_well()
    body = await read_body(request, service.flags.max_body_bytes, RENDER)
    reading = service.reading
    assert reading is not None
    is_chat = body.get("messages") is not None
    if is_chat == (body.get("prompt") is not None):
        raise FieldError("prompt: give either it or messages", "prompt")
    ask = await asyncio.to_thread(reading.ask, body, is_chat)
    return json_reply({"route": CHAT if is_chat else COMPLETIONS,
                       "token_ids": [list(prompt.ids) for prompt in ask.prompts]})  # fmt: skip


async def derender(request: Request) -> Response:
    """Answer with the text of generated ids, special tokens left out."""
    service: Service = request.app.state.service
    service.check_well()
    body = await read_body(request, service.flags.max_body_bytes, DERENDER)
    if service.tokenizer is None:
        raise FieldError("token_ids: there is no tokenizer here", "token_ids")
    ids: list[int] = body["token_ids"]  # type: ignore[assignment]
    text = await asyncio.to_thread(service.tokenizer.decode, ids)
    return json_reply({"text": text})


async def generate_ids(request: Request) -> Response:
    """Answer ids with ids, in the shape of a completion."""
    return await generate(request, GENERATE, _as_completion)


def _as_completion(body: dict[str, Json]) -> dict[str, Json]:
    sampling, prompt = body.get("sampling_params"), body["token_ids"]
    rest = {name: value for name, value in body.items() if name in ("model", "request_id")}
    rest |= {name: body.get(name) for name in ("priority", "cache_salt")}
    rest |= sampling if isinstance(sampling, dict) else {}
    return rest | {"prompt": prompt, "return_token_ids": True}


ROUTES = [
    Route(RENDER, render, methods=["POST"]),
    Route(DERENDER, derender, methods=["POST"]),
    Route(GENERATE, generate_ids, methods=["POST"]),
]
