"""Owns the process that measures: it may crash or hang, and the sweep goes on with another one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelgen.core.errors import KernelgenError
from kernelgen.core.jsonio import to_json
from kernelgen.tune.bundle_file import BundleFile
from kernelgen.tune.measurer import Measurer

_PDEATHSIG = 1  # PR_SET_PDEATHSIG


def measurer_of(kind: str, file: BundleFile) -> Measurer:
    """The measurer called `cuda`, or `fake:<JSON>` of tests."""
    if kind == "cuda":
        from kernelgen.tune.cuda_measurer import CudaMeasurer

        return CudaMeasurer(file)
    from kernelgen.tune.fake_measurer import FakeMeasurer

    return FakeMeasurer.parse(kind.partition(":")[2])


def serve(measurer: Measurer, file: BundleFile, request: Mapping[str, Any]) -> Any:
    """Do what one request asks; what it returns is the reply."""
    wanted = request["do"]
    if wanted == "settle":
        return measurer.settle()
    if wanted == "canary":
        return measurer.canary()
    if wanted == "whole":
        step = next(s for s in file.bundle.steps if s.id == request["step"])
        return measurer.whole(step, request["base"], request["trial"], request["samples"])
    group = file.bundle.group[request["group"]]
    if wanted == "open":
        measurer.open(group)
        return None
    candidate = next(c for c in group.candidates if c.id == request["candidate"])
    if wanted == "coarse":
        return measurer.coarse(group, candidate)
    return measurer.fine(group, candidate, request["samples"])


def _end_with_parent() -> None:
    """A sweep that is killed leaves nobody on the GPU, not even a candidate that hangs."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """`worker.py <descriptor> <kind>`: requests as lines of JSON on stdin, each with its bundle."""
    _end_with_parent()
    replies, kind = os.fdopen(int(sys.argv[1]), "w"), sys.argv[2]
    measurer: Measurer | None = None
    file: BundleFile | None = None
    for line in sys.stdin:
        fatal = False
        try:
            request = json.loads(line)
            if file is None or str(file.path) != request["bundle"]:
                file = BundleFile(Path(request["bundle"]))
                if measurer is not None:
                    measurer.use(file)
            measurer = measurer or measurer_of(kind, file)
            reply = {"value": to_json(serve(measurer, file, request))}
        except KernelgenError as error:
            reply = {"refused": str(error)}
        except Exception as error:  # after an error of the driver nothing more runs here
            text = " ".join(str(error).split())[:300]
            reply, fatal = {"failed": f"{type(error).__name__}: {text}"}, True
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if fatal:
            os._exit(0)  # a broken context may not even let the interpreter end


if __name__ == "__main__":
    main()
