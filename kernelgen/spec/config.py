"""Owns config.json as a file: bounded, strict JSON, an object at the top."""

from __future__ import annotations

import json
from collections.abc import Callable, ItemsView, Iterator, Mapping
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


class _Asked(Mapping[str, Any]):
    """A config that notes which of its names are asked for."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.names: set[str] = set()
        self._data = data

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return self._data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, name: object) -> bool:
        return name in self._data

    def items(self) -> ItemsView[str, Any]:
        """All of it, which asks for nothing."""
        return self._data.items()


def told_by(read: Callable[[ConfigFile], object], config: ConfigFile) -> dict[str, Any]:
    """What `read` takes from a config, by name: what the same tensors could be read otherwise by.

    Left out are what is as long as a list of all layers, and names of tokens and dtypes, which do
    not make it another model.
    """
    asked = _Asked(config.data)
    read(ConfigFile(config.source, asked))
    return {
        name: config.data[name]
        for name in sorted(asked.names & config.data.keys())
        if name not in _OF_NO_WEIGHT
        and not name.endswith("_token_id")
        and len(json.dumps(config.data[name])) <= _LONGEST
    }


def read_config(path: Path) -> ConfigFile:
    """Reads a config.json; `UsageError` when it is missing, too long or not a JSON object."""
    return ConfigFile(str(path), load_object(path, max_bytes=MAX_CONFIG_BYTES))
