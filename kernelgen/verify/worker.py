"""Owns the child process that runs kernels: it may crash or hang without taking the checker along.

    python -m kernelgen.verify.worker [--watched] BUILD ISA KERNEL…

With `--watched` kernels are launched for a tool that looks on, and not compared with anything.
Each line on stdout is one JSON object: `{}` once it is ready, `{"kernel", "step"}` before a step,
`{"kernel", "checks"}` after a kernel. It ends early, to be started again, once a kernel has damaged
memory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelgen.archs.registry import architectures
from kernelgen.verify.built import CPU, read_build
from kernelgen.verify.gpu import place_of
from kernelgen.verify.kernel_checks import check_kernel
from kernelgen.verify.launches import launch_kernel, launch_steps
from kernelgen.verify.library import PREPARE, KernelLibrary
from kernelgen.verify.step_checks import STEP, check_prepare, check_steps

WATCHED = "--watched"


def main(argv: Sequence[str]) -> int:
    """Checks the named kernels of a build, or its steps, in their order."""
    watched = argv[0] == WATCHED
    folder, isa, *names = argv[1:] if watched else argv
    check, besides = (launch_kernel, _LAUNCHED) if watched else (check_kernel, _BESIDES)
    architectures()  # out-of-tree ops become known by the import of their architecture
    where = place_of(isa)
    built = read_build(Path(folder), isa if where.promises.by_plan else CPU)
    library = KernelLibrary(built.libraries()[isa], isa)
    kernels = {k.name: k for k in built.kernels}
    _say()
    for name in names:

        def note(step: str, name: str = name) -> None:
            _say(kernel=name, step=step)

        if name in kernels:
            checks = check(built, kernels[name], library, where, note)
        else:
            checks = besides[name](built, library, where, note)
        _say(kernel=name, checks=[asdict(check) for check in checks])
        if any(c.what == "memory" and not c.passed for c in checks):
            return 0
    return 0


_BESIDES = {PREPARE: check_prepare, STEP: check_steps}
_LAUNCHED = {PREPARE: check_prepare, STEP: launch_steps}


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # A kernel that wrote where it should not may have hurt what the interpreter frees at its end.
    os._exit(code)
