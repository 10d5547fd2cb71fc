"""Owns what becomes of a benchmark's figures: on the terminal and in files, however it ends."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from kernelgen.cli import console
from kernelgen.core.errors import KernelgenError
from kernelgen.core.files import refuse_unwritable, write_atomic
from kernelgen.core.jsonio import dumps_readable

if TYPE_CHECKING:
    from kernelgen.bench.report import Report


@dataclass
class BenchResults:
    """A context around a run that keeps the latest report and tells it at the end.

    `json` and `markdown` are files to write. `UsageError` at once where they cannot be written; if
    that becomes true later, they are written to a folder for temporary files before it is raised.
    """

    json: Path | None
    markdown: Path | None
    report: Report | None = None

    def __post_init__(self) -> None:
        for path in (self.json, self.markdown):
            if path is not None:
                refuse_unwritable(path)

    def keep(self, report: Report) -> None:
        """All that was measured so far."""
        self.report = report

    def __enter__(self) -> BenchResults:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.report is None:
            return
        if error is not None:
            console.say("the run ended early; these are the figures up to then")
        problem = self._write(self.report)
        self._tell(self.report)
        if problem is not None and error is None:
            raise problem

    def _write(self, report: Report) -> KernelgenError | None:
        """Every file that was asked for, one way or the other; the last thing that went wrong."""
        from kernelgen.bench.grids import markdown

        problem: KernelgenError | None = None
        texts: list[tuple[Path | None, Callable[[], str]]] = [
            (self.json, lambda: dumps_readable(report.to_json())),
            (self.markdown, lambda: markdown(report)),
        ]
        for path, text in texts:
            if path is None:
                continue
            try:
                write_atomic(path, text())
            except KernelgenError as error:
                problem = error
                spare = Path(tempfile.mkdtemp(prefix="kernelgen-bench-")) / path.name
                console.say(f"{error}; the figures are in {write_atomic(spare, text())}")
        return problem

    @staticmethod
    def _tell(report: Report) -> None:
        from kernelgen.bench.grid import terminal
        from kernelgen.bench.grids import grids, heading, notes

        console.result("\n".join(heading(report.setup)))
        for grid in grids(report):
            console.render(terminal(grid))
        for note in notes(report):
            console.say(note)
