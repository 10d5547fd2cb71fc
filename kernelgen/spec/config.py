"""Owns config.json as a file: bounded, strict JSON, an object at the top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen.core.jsonio import JsonError, json_kind, load_object, loads

MAX_CONFIG_BYTES = 1 << 20  # the longest published ones, with per-layer lists, are below 100 KB


@dataclass(frozen=True)
class ConfigFile:
    """A config and the name under which errors speak of it."""

    source: str
    data: Mapping[str, Any]


def read_config(path: Path) -> ConfigFile:
    """Reads a config.json; `UsageError` when it is missing, too long or not a JSON object."""
    return ConfigFile(str(path), load_object(path, max_bytes=MAX_CONFIG_BYTES))


def parse_config(text: str, source: str = "config.json") -> ConfigFile:
    """The same from text."""
    value = loads(text, source=source, max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(value, dict):
        raise JsonError(f"must hold an object, not {json_kind(value)}", where=source)
    return ConfigFile(source, value)
