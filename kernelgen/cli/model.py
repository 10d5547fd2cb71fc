"""Owns what MODEL means on the command line: a built-in name, a file, a folder or a hub id."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from kernelgen.archs.registry import builtin_config, builtin_models
from kernelgen.core.errors import UsageError, quote
from kernelgen.spec.config import ConfigFile, read_config

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9.]+")


@dataclass(frozen=True)
class ModelSource:
    """A model that was named: its config, and the checkpoint's folder where there is one.

    `name` is fit for files and distributions: lower case, digits, dots and dashes.
    """

    given: str
    name: str
    config: ConfigFile
    folder: Path | None = None


def resolve(text: str) -> ModelSource:
    """The model behind a name, path or hub id. `UsageError` says what was looked for.

    What exists on disk wins over a built-in name, and that over the hub, which is asked for
    `config.json` only.
    """
    path = Path(text or "?").expanduser()  # Path("") would be the current folder
    if os.path.isdir(path):
        return _folder(text, path)
    if os.path.isfile(path):
        return _file(text, path)
    if text.lower() in builtin_models():
        return ModelSource(text, text.lower(), builtin_config(text.lower()))
    if _HUB_ID.fullmatch(text):
        return _from_hub(text)
    if _looks_like_path(text):
        raise UsageError("no such file or folder", where=quote(text))
    near = difflib.get_close_matches(text.lower(), builtin_models(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`kernelgen models` lists the names"
    raise UsageError(
        f"model {quote(text)} is neither built in nor a file",
        allowed="a built-in name, config.json, a checkpoint folder or a hub id (owner/name)",
        hint=hint,
    )


def plain_name(text: str) -> str:
    """`text` as a name for files: lower case, everything else than letters, digits, dots a dash."""
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-.")[:80].strip("-.") or "model"


def _folder(text: str, path: Path) -> ModelSource:
    config = path / "config.json"
    if not config.is_file():
        found = sorted(p.name for p in path.iterdir())[:5]
        holds = f"holds {', '.join(map(quote, found))}" if found else "is empty"
        raise UsageError(f"no config.json: the folder {holds}", where=str(path))
    return ModelSource(text, plain_name(path.resolve().name), read_config(config), path)


def _file(text: str, path: Path) -> ModelSource:
    if path.suffix == ".gguf":
        raise UsageError("GGUF files are not read", where=text, allowed="a safetensors checkpoint")
    stem = path.resolve().parent.name if path.name == "config.json" else path.stem
    return ModelSource(text, plain_name(stem), read_config(path))


def _from_hub(text: str) -> ModelSource:
    from kernelgen.cli.hub import fetch_config

    return ModelSource(text, plain_name(text.split("/")[1]), read_config(fetch_config(text)))


def _looks_like_path(text: str) -> bool:
    return "/" in text or text.startswith((".", "~")) or text.endswith((".json", ".safetensors"))
