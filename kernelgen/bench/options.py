"""Owns what a run is asked for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen.bench.case import Case
from kernelgen.bench.peers import ADAPTERS

CUBLAS, SDPA = "cublas", "sdpa"
BASELINES = (CUBLAS, SDPA, *ADAPTERS)

Say = Callable[[str], None]
"""takes a line about what is done next"""


@dataclass(frozen=True)
class Options:
    """What is asked. `config` is the model's config.json for engines that build it themselves;
    `command` what repeats the run, without the batches. `demanded`: baselines that must not be left
    out in silence, where a device has none of them.
    """

    build: Path
    cases: tuple[Case, ...]
    command: tuple[str, ...]
    device: str = "auto"
    weights: str = "random"
    threads: int | None = None
    rounds: int = 5
    baselines: tuple[str, ...] = ()
    demanded: tuple[str, ...] = ()
    kernels: bool = True
    start: bool = False
    config: Mapping[str, Any] | None = None

    @property
    def batch(self) -> int:
        """Most requests at once."""
        return max(case.batch for case in self.cases)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(case.length for case in self.cases)

    def repeat(self, cases: Sequence[Case]) -> str:
        """The command line for these cases."""
        batches = ",".join(str(case.batch) for case in cases)
        return shlex.join([*self.command, "--batch", batches])
