"""Owns the OpenAPI description, made of the schemas that bodies are checked with."""

from typing import Any

from .fields import BODIES

Description = dict[str, Any]
_ERROR: Description = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}
_GETS: dict[str, tuple[str, str]] = {
    "/v1/models": ("names of the model", "application/json"),
    "/version": ("version of the build", "application/json"),
    "/load": ("requests being answered", "application/json"),
    "/metrics": ("Prometheus text", "text/plain"),
    "/health": ("200 where requests can be served", ""),
    "/ping": ("200 where requests can be served", ""),
}
_SUMMARIES = {
    "/v1/completions": "continue prompts",
    "/v1/chat/completions": "answer a conversation",
    "/tokenize": "ids of a text or conversation",
    "/detokenize": "text of ids",
    "/render": "the prompt of a request, as ids",
    "/derender": "text of generated ids",
    "/inference/v1/generate": "ids to ids",
}
SCALE_OUT = ("/render", "/derender", "/inference/v1/generate")
_STREAMED = ("/v1/completions", "/v1/chat/completions")


def openapi(scale_out: bool) -> Description:
    """Return the description of every route that this server has."""
    paths: Description = {}
    for path, (summary, kind) in _GETS.items():
        answers: Description = {"200": _answer(kind), "503": {"description": "not ready"}}
        paths[path] = {"get": {"summary": summary, "responses": answers}}
    paths["/ping"]["post"] = paths["/ping"]["get"]  # some clouds ask so
    for path, schema in BODIES.items():
        if path in SCALE_OUT and not scale_out:
            continue
        answers = {"200": _answer("application/json", path in _STREAMED)}
        for status in (400, 401, 404, 408, 413, 415, 500, 503):
            answers[str(status)] = _problem()
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {
            "post": {"summary": _SUMMARIES[path], "requestBody": body, "responses": answers}
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "kernelgen", "version": "1"},
        "paths": paths,
    }


def _answer(kind: str, streams: bool = False) -> Description:
    content: Description = {kind: {}} if kind else {}
    if streams:
        content["text/event-stream"] = {}
    return {"description": "the answer"} | ({"content": content} if content else {})


def _problem() -> Description:
    return {"description": "a problem", "content": {"application/json": {"schema": _ERROR}}}
