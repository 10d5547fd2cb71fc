"""Owns reading JSON that nobody vouches for: bounded, no duplicate keys, only finite numbers."""

import json
import math
from collections.abc import Callable
from pathlib import Path

from ..errors import KernelgenRuntimeError, shown

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class JsonTextError(ValueError):
    """The text is not acceptable JSON; the message says why."""


def parse_json(text: bytes | str) -> Json:
    """Parse `text` strictly. Raises JsonTextError, whatever the text is."""
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value: Json = json.loads(
            decoded,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except JsonTextError:
        raise
    except UnicodeDecodeError as error:
        raise JsonTextError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise JsonTextError("nested too deeply") from None
    except ValueError as error:
        raise JsonTextError(f"not JSON: {str(error)[:120]}") from None
    return value


def read_json(
    path: Path, max_bytes: int, error: Callable[[str], KernelgenRuntimeError]
) -> dict[str, Json]:
    """Read the JSON object in `path`; every refusal is raised as `error(message naming path)`."""
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as failure:
        raise error(f"{path}: cannot read it ({failure.strerror})") from None
    if len(text) > max_bytes:
        raise error(f"{path}: larger than the {max_bytes} bytes that are allowed")
    try:
        value = parse_json(text)
    except JsonTextError as failure:
        raise error(f"{path}: {failure}") from None
    if not isinstance(value, dict):
        raise error(f"{path}: must be a JSON object, is {shown(value)}")
    return value


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonTextError(f"key {shown(key)} appears twice")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> Json:
    raise JsonTextError(f"{name} is not a number that is allowed")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonTextError(f"number {shown(text)} is out of range")
    return value
