"""Owns config.json as a file: bounded, strict JSON, an object at the top."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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


_OF_NO_WEIGHT = ("architectures", "dtype", "torch_dtype", "max_position_embeddings")
_LONGEST = 1000


class _Asked(dict[str, Any]):
    """A config, or an object in it, that notes which of its names are asked for."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        held = {k: _Asked(v) if isinstance(v, Mapping) else v for k, v in data.items()}
        super().__init__(held)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value, which is asked for."""
        return self[name] if dict.__contains__(self, name) else default

    def told(self) -> dict[str, Any]:
        """What was asked for; of an object what was asked for in it, or all of it where it was
        taken as a whole."""
        found: dict[str, Any] = {}
        for name in sorted(self.names & self.keys()):
            value = super().__getitem__(name)
            if name in _OF_NO_WEIGHT or name.endswith("_token_id"):
                continue
            if isinstance(value, _Asked) and value.names:
                found[name] = value.told()
            elif len(json.dumps(value)) <= _LONGEST:
                found[name] = value
        return found


def told_by(read: Callable[[ConfigFile], object], config: ConfigFile) -> dict[str, Any]:
    """What `read` takes from a config, by name: what the same tensors could be read otherwise by.

    Left out are what is as long as a list of all layers, and names of tokens and dtypes, which do
    not make it another model.
    """
    asked = _Asked(config.data)
    read(ConfigFile(config.source, asked))
    return asked.told()


def read_config(path: Path) -> ConfigFile:
    """Reads a config.json; `UsageError` when it is missing, too long or not a JSON object."""
    return ConfigFile(str(path), load_object(path, max_bytes=MAX_CONFIG_BYTES))
