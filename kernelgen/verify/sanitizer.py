"""Owns running a build's kernels under NVIDIA's compute-sanitizer, and what it says as checks."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelgen.core.errors import UnsupportedError
from kernelgen.verify.built import Built
from kernelgen.verify.checks import Callback, Check, faults
from kernelgen.verify.child import Under
from kernelgen.verify.following import check_following
from kernelgen.verify.gpu import BARE
from kernelgen.verify.supervisor import Watch, kernel_names
from kernelgen.verify.worker import WATCHED

TOOLS = ("memcheck", "racecheck", "synccheck")
PROGRAM = "compute-sanitizer"
_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_SUBJECT = "all kernels"
_NOT_OURS = "native"
"""is in the name of every kernel of torch, which fills and copies buffers, and in none of ours"""
_LIMIT = 20
_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", re.M)
_RULE = re.compile(r"^=+ ?")


def check_watched(
    built: Built, isa: str, tool: str, progress: Callback | None = None
) -> tuple[Check, ...]:
    """Every kernel, a step of every plan and what follows steps under a tool of compute-sanitizer.

    `isa`: the library. Raises `UnsupportedError` where the program is not installed.
    """
    program = find_sanitizer()
    names = kernel_names(built)
    with tempfile.TemporaryDirectory(prefix="kernelgen-sanitizer-") as folder:
        # Without zones of ours around them, the tool sees each access beyond a buffer's end.
        more = {BARE: "1"} if tool == "memcheck" else {}
        logged = Logged(program, tool, Path(folder), more)
        watch = Watch(0, len(names), f" [{tool}]", progress, under=logged, flags=(WATCHED,))
        checks = watch.run(built.folder, isa, names)
        checks += check_following(built, None, logged)
        return (*checks, told(tool, logged.texts(), len(names)))


def find_sanitizer() -> str:
    """The program, from the PATH or where CUDA is installed."""
    found = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=":".join(_FOLDERS))
    if found is None:
        hint = "it comes with the CUDA toolkit; put its bin folder on the PATH"
        raise UnsupportedError(f"{PROGRAM} is not installed", hint=hint)
    return found


@dataclass
class Logged(Under):
    """The tool around each child, with a log of its own."""

    program: str
    tool: str
    folder: Path
    more: Mapping[str, str] = field(default_factory=dict)
    logs: list[Path] = field(default_factory=list)

    def command(self) -> list[str]:
        self.logs.append(self.folder / f"{len(self.logs)}.log")
        filters = ["--kernel-regex-exclude", f"kns={_NOT_OURS}"]
        limits = ["--print-limit", str(_LIMIT), "--log-file", str(self.logs[-1])]
        return [self.program, "--tool", self.tool, *filters, *limits]

    def environment(self) -> Mapping[str, str]:
        return self.more

    def texts(self) -> list[str]:
        """What was logged; empty where the tool never came to it."""
        return [log.read_text(errors="replace") if log.is_file() else "" for log in self.logs]


def told(tool: str, logs: list[str], launched: int) -> Check:
    """The verdict of all logs: their findings counted, the first one in words. A log without a
    summary is a finding: the tool did not come to its end.
    """
    count, first = 0, ""
    for log in logs:
        summary = _SUMMARY.search(log)
        number = int(summary[1]) if summary else 1
        count += number
        if number and not first:
            lines = [_RULE.sub("", line).strip() for line in log.splitlines()]
            said = [line for line in lines if line and not line.startswith("COMPUTE-SANITIZER")]
            first = "; ".join(said[:3]) or "the tool said nothing"
    return faults(_SUBJECT, tool, launched, count, first)
