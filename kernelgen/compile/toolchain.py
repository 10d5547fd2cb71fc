"""Owns finding the C++ compiler and the tvm-ffi headers, and what identifies both in a digest."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from kernelgen.core.digest import digest_file
from kernelgen.core.errors import UnsupportedError, quote

OLDEST_MAJOR = 11  # the first g++ that knows x86-64-v3 and x86-64-v4
_HEADERS = ("tvm/ffi/c_api.h", "tvm/ffi/extra/c_env_api.h", "dlpack/dlpack.h")


@dataclass(frozen=True)
class CppToolchain:
    """A usable compiler. `identity` changes whenever equal sources may give other bytes."""

    compiler: str
    version: str
    include: str
    tvm_ffi: str
    identity: tuple[str, ...]


def find_toolchain() -> CppToolchain:
    """The compiler of `$CXX` (else g++) with the tvm-ffi C headers of this environment.

    `UnsupportedError` when either is missing or too old. Never imports tvm_ffi: that would
    import torch, which takes seconds.
    """
    return _probe(os.environ.get("CXX") or "g++")


@functools.cache
def _probe(command: str) -> CppToolchain:
    compiler = shutil.which(command)
    hint = "install one (Debian: apt-get install g++) or set CXX to its path"
    if compiler is None:
        raise UnsupportedError(f"C++ compiler {quote(command)} not found", hint=hint)
    version = _ask(compiler, "-dumpfullversion", "-dumpversion")
    match = re.match(r"(\d+)", version)
    if match is None or int(match[1]) < OLDEST_MAJOR:
        raise UnsupportedError(
            f"{compiler} is version {quote(version)}", allowed=f"{OLDEST_MAJOR} or newer", hint=hint
        )
    if platform.machine() != "x86_64":
        raise UnsupportedError(f"this machine is {platform.machine()}", allowed="x86_64")
    include, tvm_ffi = _tvm_ffi_headers()
    tools = [_ask(compiler, f"-print-prog-name={name}") for name in ("as", "ld")]
    identity = (
        _first_line(compiler, "--version"),
        _ask(compiler, "-dumpmachine"),
        *(_first_line(tool, "--version") for tool in tools),
        " ".join(platform.libc_ver()),
        *(digest_file(include / name) for name in _HEADERS),
    )
    return CppToolchain(compiler, f"g++ {version}", str(include), tvm_ffi, identity)


def _tvm_ffi_headers() -> tuple[Path, str]:
    spec = importlib.util.find_spec("tvm_ffi")
    places = list(spec.submodule_search_locations or ()) if spec else []
    hint = "pip install 'apache-tvm-ffi>=0.1.6,<0.2'"
    if not places:
        raise UnsupportedError("the Python package apache-tvm-ffi is not installed", hint=hint)
    include = Path(places[0]) / "include"
    missing = [name for name in _HEADERS if not (include / name).is_file()]
    if missing:
        raise UnsupportedError(
            f"tvm-ffi header {missing[0]} is missing", where=str(include), hint=hint
        )
    try:
        version = metadata.version("apache-tvm-ffi")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return include, version


def _ask(*argv: str) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedError(f"{argv[0]} cannot be run: {error}") from error
    if done.returncode:
        raise UnsupportedError(f"{' '.join(argv)} failed: {quote(done.stderr.strip(), 200)}")
    return done.stdout.strip()


def _first_line(*argv: str) -> str:
    return _ask(*argv).partition("\n")[0]
