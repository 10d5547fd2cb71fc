"""The stand-in driver of the tests, and child processes that use a GPU library with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_WIDTHS = {"*": [8], "i32": [4], "i64": [8], "fp32": [4], "tensordesc": [128, 4, 4, 8, 8]}


@dataclass(frozen=True)
class Launched:
    """One launch as the driver saw it; `values` are the parameters' bytes as numbers."""

    symbol: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    attributes: dict[int, int]
    values: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """What commands returned or raised, and the driver's calls in order."""

    results: list[dict[str, Any]]
    calls: list[str]

    @property
    def launches(self) -> list[Launched]:
        """The launches among the calls."""
        return [_launched(c) for c in self.calls if c.startswith("cuLaunchKernelEx")]

    def error(self, number: int = -1) -> str:
        """`Kind: text` of a command that raised."""
        result = self.results[number]
        return f"{result['error']}: {result['text']}"

    def fine(self) -> Outcome:
        """Itself, once no command has raised."""
        bad = [r for r in self.results if "error" in r]
        assert not bad, bad
        return self


def build_driver(folder: Path, *flags: str) -> Path:
    """Compiles the stand-in as `folder/libcuda.so.1`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    source, library = HERE / "fake_libcuda.cpp", folder / "libcuda.so.1"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", *flags, str(source), "-o"]
    subprocess.run([*command, str(library)], check=True)
    return folder


def parameter_sizes(types: Mapping[str, Sequence[str]]) -> str:
    """Symbol → types of its arguments, as the stand-in wants them; two hidden pointers follow."""
    widths = {
        symbol: [
            w for t in [*found, "*", "*"] for w in _WIDTHS["*" if t[0] == "*" else t.split("<")[0]]
        ]
        for symbol, found in types.items()
    }
    return ";".join(f"{symbol}:{','.join(map(str, found))}" for symbol, found in widths.items())


def run_commands(
    library: Path,
    commands: Sequence[Sequence[Any]],
    *,
    driver: Path | None,
    log: Path,
    **settings: str,
) -> Outcome:
    """Runs commands in a process that finds the stand-in of `driver`, or no driver when None."""
    log.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FAKE_")}
    environment |= {"FAKE_LOG": str(log), **settings}
    if driver is not None:
        environment["LD_LIBRARY_PATH"] = str(driver)
    done = subprocess.run(
        [sys.executable, str(HERE / "gpu_child.py")],
        input=json.dumps([str(library), commands]),
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    calls = log.read_text(errors="replace").split("\n")[:-1] if log.exists() else []
    return Outcome(json.loads(done.stdout), calls)


def _launched(call: str) -> Launched:
    match = re.fullmatch(
        r"cuLaunchKernelEx (\w+) grid=(\S+) block=(\S+) shared=(\d+) stream=(\d+)"
        r" attributes=(\S*) values=(\S*)",
        call,
    )
    assert match is not None, call
    symbol, grid, block, shared, stream, attributes, values = match.groups()
    return Launched(
        symbol,
        _numbers(grid),
        _numbers(block),
        int(shared),
        int(stream),
        {int(k): int(v) for k, v in (a.split("=") for a in attributes.split(",") if a)},
        _numbers(values),
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
