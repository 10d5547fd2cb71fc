"""Owns child processes of a benchmark: a fresh Python that finds our packages, and its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kernelgen
from kernelgen.core.errors import KernelgenError, quote


def python_child(
    arguments: Sequence[str], *, given: str = "", seconds: float = 600
) -> dict[str, Any]:
    """Runs `python ARGUMENTS` with `given` on stdin; its last line of stdout, a JSON object.

    `KernelgenError` with the child's last words where it fails, hangs or says anything else.
    """
    what = " ".join(arguments[:3])
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        raise KernelgenError(f"took longer than {seconds:g} s", where=f"python {what}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].strip() if said else f"ended with code {done.returncode}"
        raise KernelgenError(reason.removeprefix("error: ")[:300], where=f"python {what}")
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        text = quote(done.stdout[-200:])
        raise KernelgenError(f"gave no figures but {text}", where=f"python {what}") from None
    return answer


def _environment() -> dict[str, str]:
    """Ours, with both packages found first wherever they were imported from."""
    import kernelgen_runtime

    files = [str(package.__file__) for package in (kernelgen, kernelgen_runtime)]
    folders = [str(Path(file).resolve().parent.parent) for file in files]
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, *([known] if known else [])])}
