"""Owns reading the body of a request: bounded in bytes and time, JSON, checked by a schema."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request

from ..artifact.bounded_json import Json
from .faults import check
from .fields import BODIES
from .problems import Problem, ProblemError

BODY_SECONDS = 60.0
_DECODE = msgspec.json.Decoder().decode


async def read_body(request: Request, limit: int, schema: str) -> dict[str, Json]:
    """Return the JSON object that a request carries, checked by the schema of route `schema`.

    Raises ProblemError (wrong type, too large, too slow, no JSON), FieldError, ClientDisconnect.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ProblemError(Problem(415, "the body must be application/json"))
    value = parse(await _bytes(request, limit))
    check(value, BODIES[schema])
    assert isinstance(value, dict)
    return value


def parse(data: bytes) -> Any:
    """Return what JSON text holds. Raises ProblemError for what is none."""
    try:
        return _DECODE(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProblemError(Problem(400, f"the body is not JSON: {str(error)[:200]}")) from None
    except RecursionError:
        raise ProblemError(Problem(400, "the body is not JSON: nested too deeply")) from None


async def _bytes(request: Request, limit: int) -> bytes:
    too_large = ProblemError(Problem(413, f"the body is larger than {limit} bytes"))
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise too_large
    pieces, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size > limit:
                    raise too_large
                pieces.append(piece)
    except TimeoutError:
        raise ProblemError(Problem(408, f"the body took over {BODY_SECONDS:.0f} s")) from None
    return b"".join(pieces)
