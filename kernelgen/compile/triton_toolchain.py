"""Owns finding Triton without importing it, and what identifies it in a digest."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from kernelgen.core.digest import digest_bytes, digest_file
from kernelgen.core.errors import UnsupportedError, quote

OLDEST = (3, 6)
_HINT = "pip install 'kernelgen[gpu]'"
# The only variables of Triton that a user may set: they replace its assemblers.
_ASSEMBLERS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


@dataclass(frozen=True)
class TritonToolchain:
    """A usable Triton. `identity` changes whenever equal kernels may give other code."""

    version: str
    identity: tuple[str, ...]


def find_triton() -> TritonToolchain:
    """The Triton of this environment; `UnsupportedError` when it is missing or too old.

    Never imports it: the compiler's own process stays free of it.
    """
    return _probe(tuple(os.environ.get(name, "") for name in _ASSEMBLERS))


def worker_environment(scratch: Path) -> dict[str, str]:
    """Environment of the processes that import Triton; their temporary files go to `scratch`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_") or k in _ASSEMBLERS}
    root = str(Path(__file__).resolve().parents[2])
    above = kept.get("PYTHONPATH", "")
    return kept | {
        # Line tables make cubins 2–4 times larger and put source paths into them.
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_DUMP_PTXAS_LOG": "1",  # the only place that tells spills from other stack
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TMPDIR": str(scratch),
        "PYTHONPATH": f"{root}{os.pathsep}{above}" if above else root,
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C",
    }


@functools.cache
def _probe(assemblers: tuple[str, ...]) -> TritonToolchain:
    if importlib.util.find_spec("triton") is None:
        raise UnsupportedError("the Python package triton is not installed", hint=_HINT)
    try:
        found = metadata.distribution("triton")
    except metadata.PackageNotFoundError:
        raise UnsupportedError("the package triton has no metadata", hint=_HINT) from None
    numbers = tuple(int(n) for n in re.findall(r"\d+", found.version)[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedError(
            f"triton is version {quote(found.version)}", allowed=f"{oldest} or newer", hint=_HINT
        )
    identity = (
        f"triton {found.version}",
        # The installer's list holds a digest of every file, libtriton and ptxas among them.
        digest_bytes(found.read_text("RECORD") or ""),
        "python {}.{}".format(*sys.version_info[:2]),  # whose syntax trees the front end reads
        *map(_assembler_digest, _ASSEMBLERS, assemblers),
    )
    return TritonToolchain(found.version, identity)


def _assembler_digest(name: str, path: str) -> str:
    if not path:
        return ""
    if not os.access(path, os.X_OK):
        raise UnsupportedError(f"{quote(path)} cannot be run", where=name)
    return digest_file(Path(path))
