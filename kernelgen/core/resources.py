"""Owns where shipped files lie: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

from kernelgen.core.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent


def _find(what: str, *candidates: Path) -> Path:
    for path in candidates:
        if path.exists():
            return path
    looked = " and ".join(str(path) for path in candidates)
    raise UsageError(f"{what} not found in {looked}", hint="reinstall kernelgen")


def templates_dir() -> Path:
    """Folder of the Jinja2 sources, one sub-folder a backend."""
    # The installed form comes first: site-packages may hold somebody else's `templates`.
    return _find("templates", _PACKAGE / "_shipped/templates", _PACKAGE.parent / "templates")


def tables_dir() -> Path:
    """Folder of the measured rows, `<sm>/<device>/<family>.jsonl`."""
    name = "autotune_configs"
    return _find(name, _PACKAGE / "_shipped" / name, _PACKAGE.parent / name)


def runtime_dir() -> Path:
    """Folder of the runtime's sources, copied into every serving wheel; never imported here."""
    name = "kernelgen_runtime"
    return _find(name, _PACKAGE.parent / "runtime" / name, _PACKAGE.parent / name)


def license_file() -> Path:
    """The licence text, which travels with the runtime's sources."""
    return _find("LICENSE", _PACKAGE / "_shipped/LICENSE", _PACKAGE.parent / "LICENSE")
