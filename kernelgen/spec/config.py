"""Owns config.json as a file: bounded, strict JSON, an object at the top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen.core.jsonio import load_object

MAX_CONFIG_BYTES = 1 << 20  # the longest published ones, with per-layer lists, are below 100 KB


@dataclass(frozen=True)
class ConfigFile:
    """A config and the name under which errors speak of it."""

    source: str
    data: Mapping[str, Any]


def read_config(path: Path) -> ConfigFile:
    """Reads a config.json; `UsageError` when it is missing, too long or not a JSON object."""
    return ConfigFile(str(path), load_object(path, max_bytes=MAX_CONFIG_BYTES))
