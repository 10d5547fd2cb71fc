"""Owns what follows a step, choices by rules, kept sets, log-probabilities, run by the runtime."""

from __future__ import annotations

import json
from pathlib import Path

from kernelgen.core.resources import runtime_dir
from kernelgen.verify.built import Built
from kernelgen.verify.checks import Check, faults
from kernelgen.verify.child import Child, Under

RUN_SECONDS = 600.0
_SUBJECT = "what follows a step"


def check_following(
    built: Built, weights: Path | None, under: Under | None = None
) -> tuple[Check, ...]:
    """Every kind of result beside its law, on the logits of its own step.

    `weights` None: random ones, which do as well. `under`: what runs the runtime, without graphs.
    """
    command = ["-m", "kernelgen_runtime", "check", str(built.folder)]
    command += ["--weights", "random:1" if weights is None else str(weights)]
    command += ["--device", "cuda" if built.on_gpu else "cpu"]
    command += ["--eager"] if under is not None else []
    with Child(command, [runtime_dir().parent], under) as child:
        lines = [json.loads(line) for line in child.lines(RUN_SECONDS)]
        end = child.end()
    if not lines:
        return (faults(_SUBJECT, "ends", 1, 1, end),)
    return tuple(
        faults(_SUBJECT, line["what"], line["cases"], line["wrong"], line["first"])
        for line in lines
    )
