"""Bundles of made-up candidates, and sweeps over them with a measurer that needs no device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelgen.core.digest import digest_bytes
from kernelgen.tune.bundle import Bundle, Candidate, DeviceFacts, Extents, Group, Launch, ModelFacts
from kernelgen.tune.bundle_file import write_bundle
from kernelgen.tune.journal import read_journal
from kernelgen.tune.rows import rows_in

CODE = b"machine code"
ROOT = Path(__file__).resolve().parents[2]


def candidate(warps: int, why: str = "fast") -> Candidate:
    """A tile; fewer warps are modelled faster."""
    code = digest_bytes(CODE)
    launch = Launch(code, "kernel", (1, 1, 1), 32 * warps, 0, True, False, 32, ())
    choice = {"outputs": 2, "depth": 256, "warps": warps}
    return Candidate(choice, (launch,), 0, 0, "0" * 64, 10.0 + warps, why)


def group(number: int, *, tiles: int = 4, elsewhere: tuple[int, ...] = ()) -> Group:
    """A kernel that takes more of the step the lower its number is."""
    return Group(
        model="toy",
        kernel=f"kernel_{number}",
        family="gemv",
        variant=f"variant {number}",
        bucket="decode:1",
        extents=Extents(1, 1, 1024, 1),
        graph={},
        signature=(),
        layers=(),
        placements=1,
        bytes=1 << 20,
        flops=1 << 20,
        math="bfloat16",
        chosen=True,
        planned_us=10.0 - number,
        step_us=100.0,
        before=dict(candidate(2).choice),
        before_verdict="modelled",
        candidates=tuple(candidate(1 << i, "" if i else "model's best") for i in range(tiles)),
        looked_at=90,
        elsewhere=elsewhere,
    )


def bundle(count: int = 3, **changes: Any) -> Bundle:
    """A bundle for a device that does not exist."""
    device = DeviceFacts(
        "sm_90:h200", 90, "h200", (), 50 << 20, 4200.0, 4000.0, 1.2, {"bfloat16": 900.0}
    )
    model = ModelFacts("toy", 100, 4096, (), (), 64, 8, 64, (), ())
    made = Bundle(
        1, "kernelgen 0", "w" * 64, "normal", device, {"triton": "3.6.0", "ptxas": "12.8"},
        (model,), tuple(group(i) for i in range(count)),
    )  # fmt: skip
    return replace(made, **changes)


def write(folder: Path, made: Bundle, name: str = "toy.zip") -> Path:
    """The bundle as a file."""
    write_bundle(folder / name, made, {digest_bytes(CODE): CODE})
    return folder / name


def place(made: Bundle, number: int, tile: int) -> str:
    """How a fake measurer is told of a candidate."""
    return f"{made.groups[number].id}/{made.groups[number].candidates[tile].id}"


def rows_of(journal: Path) -> list[dict[str, Any]]:
    """Rows that would be shipped, without what tells two runs apart."""
    lines, _ = read_journal(journal)
    return [vars(row) | {"date": "", "provenance": ""} for row in rows_in(lines)[0]]


def lines_of(journal: Path, kind: str) -> list[dict[str, Any]]:
    """Lines of a kind."""
    return [dict(line) for line in read_journal(journal)[0] if line["kind"] == kind]


_RUN = """
import sys, json
from pathlib import Path
from kernelgen.cli.tune import Measuring, measure_bundle
bundle, journal, how = sys.argv[1:]
measure_bundle(Path(bundle), Path(journal), Measuring(**json.loads(how)))
"""


def start(path: Path, journal: Path, fake: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A sweep in a process of its own."""
    how = json.dumps({"kind": f"fake:{json.dumps(fake)}"})
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'runtime'}"}
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, str(path), str(journal), how],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def kill(sweep: subprocess.Popen[bytes]) -> None:
    """The sweep ends with no chance to tidy up."""
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    """Until it is true; `AssertionError` where that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.01)
