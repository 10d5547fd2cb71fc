"""Owns a start that is watched: the runtime's command line in this process, and what it started.

Run as `python -m kernelgen.bench.started run …`; imports nothing of ours but the runtime.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

PROCESS_EVENTS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork")


def main(arguments: list[str]) -> int:
    """Prints the JSON of `kernelgen_runtime run --json` with `processes`, the programs that it
    started, and `triton_imported`; returns its exit code.
    """
    processes: list[str] = []

    def hear(event: str, values: tuple[Any, ...]) -> None:
        if event in PROCESS_EVENTS:
            program = values[0] if values else event
            processes.append(os.path.basename(os.fsdecode(program or "a shell")))

    sys.addaudithook(hear)
    from kernelgen_runtime.cli import main as command_line

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = command_line(arguments)
    if code == 0:
        facts = json.loads(said.getvalue().splitlines()[-1])
        print(json.dumps({**facts, "processes": processes, "triton_imported": _has_triton()}))
    return code


def _has_triton() -> bool:
    return any(name.partition(".")[0] == "triton" for name in sys.modules)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
