"""Owns discovery: the architectures, which one a config means, which configs are built in."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

from kernelgen.archs.architecture import Architecture
from kernelgen.core.errors import KernelgenError, UnsupportedError, UsageError, quote
from kernelgen.spec.config import ConfigFile, read_config

ENTRY_POINT_GROUP = "kernelgen.architectures"
_HERE = Path(__file__).parent


def architectures() -> Mapping[str, Architecture]:
    """Every architecture by name: the folders beside this file, then those of entry points.

    `KernelgenError` when an entry point cannot be loaded or a name is there twice.
    """
    found = dict(_own())
    entries = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    for entry in sorted(entries, key=lambda e: (e.name, e.value)):
        architecture = _load(entry)
        if architecture.name in found:
            raise KernelgenError(
                f"architecture {architecture.name} is there already", where=_origin(entry)
            )
        found[architecture.name] = architecture
    return found


def find_architecture(config: ConfigFile) -> Architecture:
    """The one architecture whose predicate accepts the config.

    None: `UnsupportedError` that names what the config says and lists what exists. Two:
    `KernelgenError` naming both.
    """
    known = architectures()
    fits = [a for a in known.values() if a.matches(config.data)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        names = " and ".join(a.name for a in fits)
        raise KernelgenError(f"architectures {names} both claim this config", where=config.source)
    if "architectures" not in config.data and "model_type" not in config.data:
        raise UsageError(
            "names no model: neither architectures nor model_type is there", where=config.source
        )
    raise UnsupportedError(
        f"architecture {_named(config)} is not supported",
        where=config.source,
        allowed=", ".join(sorted(known)),
        hint="`kernelgen models` lists what is built in",
    )


def builtin_models() -> Mapping[str, Path]:
    """Config files that come with the architectures, by name."""
    found: dict[str, Path] = {}
    for architecture in architectures().values():
        for path in sorted(architecture.folder.glob("models/*.json")):
            if found.setdefault(path.stem, path) != path:
                raise KernelgenError(f"built-in model {path.stem} is there twice", where=str(path))
    return dict(sorted(found.items()))


def builtin_config(name: str) -> ConfigFile:
    """The config of a built-in model; an unknown name is a `UsageError` listing what exists."""
    models = builtin_models()
    if name not in models:
        raise UsageError(
            f"model {quote(name)} is not built in", allowed=", ".join(models) or "none"
        )
    return read_config(models[name])


@functools.cache
def _own() -> Mapping[str, Architecture]:
    found = {}
    for folder in sorted(p.parent for p in _HERE.glob("*/__init__.py")):
        module = importlib.import_module(f"{__package__}.{folder.name}")
        architecture = module.ARCHITECTURE
        assert isinstance(architecture, Architecture) and architecture.name == folder.name
        found[architecture.name] = architecture
    return found


def _load(entry: importlib.metadata.EntryPoint) -> Architecture:
    try:
        loaded = entry.load()
    except Exception as error:  # whatever a foreign module raises while it is imported
        reason = f"{type(error).__name__}: {quote(str(error))}"
        raise KernelgenError(f"cannot be loaded: {reason}", where=_origin(entry)) from error
    if not isinstance(loaded, Architecture):
        raise KernelgenError(
            f"is a {type(loaded).__name__}", where=_origin(entry), allowed="an Architecture"
        )
    return loaded


def _origin(entry: importlib.metadata.EntryPoint) -> str:
    owner = f" of {entry.dist.name}" if entry.dist else ""
    return f"entry point {entry.name} = {entry.value}{owner}"


def _named(config: ConfigFile) -> str:
    classes = config.data.get("architectures")
    if isinstance(classes, list) and classes:
        return ", ".join(quote(c) for c in classes[:4])
    return quote(config.data.get("model_type"))
