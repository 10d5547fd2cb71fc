"""Owns what commands do with tuning tables besides planning: warnings, and `--require-tuned`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernelgen.cli import console
from kernelgen.core.errors import CheckFailed, ProblemList, UsageError
from kernelgen.core.resources import tables_dir
from kernelgen.hw import parse_target
from kernelgen.planner.plan import Plan
from kernelgen.tables import Tables, Verdict


def open_tables(folder: Path | None) -> Tables:
    """The tables of `--tables`, else those that ship; `UsageError` for what is no folder."""
    if folder is not None and not folder.is_dir():
        raise UsageError("no such folder", where=str(folder), hint="--tables names a folder")
    return Tables(folder or tables_dir())


def warn(tables: Tables) -> None:
    """What of the tables could not be used, on stderr: a few lines, and how many more."""
    console.say_some(tuple(tables.warnings()), "warning: ")


def refuse_idle_demand(targets: Sequence[str], require_tuned: bool) -> None:
    """`UsageError` for `--require-tuned` where no target has a kernel that could be tuned."""
    if require_tuned and all(parse_target(target).is_cpu for target in targets):
        raise UsageError(
            "kernels of the CPU have no tiles to tune",
            where="--require-tuned",
            hint="give a --target sm_NN, or leave it out",
        )


def refuse_tuned_invariant(require_tuned: bool, invariant: bool) -> None:
    """`UsageError` for both: what is measured size by size is not used for one tile of all."""
    if require_tuned and invariant:
        raise UsageError(
            "batch-invariant kernels have one tile for every size, which no table row measures",
            where="--require-tuned",
            hint="leave out one of --require-tuned and --batch-invariant",
        )


@contextmanager
def warning_of(tables: Tables) -> Iterator[None]:
    """`warn` at the end of the body, before what it raises is told: that may be the reason."""
    try:
        yield
    finally:
        warn(tables)


def refuse_untuned(plans: Sequence[Plan], model: str, target: str) -> None:
    """`CheckFailed` with every kernel that a plan needs and nobody has measured, and the next
    command; plans come from families that were told to require rows.
    """
    sizes: dict[tuple[str, str], list[str]] = {}
    for plan in plans:
        for launch in plan.launches:
            if launch.price.verdict == Verdict.REFUSED.value:
                kernel = launch.kernel
                found = sizes.setdefault((kernel.match.family.name, kernel.name), [])
                if f"{plan.phase}:{plan.size}" not in found:
                    found.append(f"{plan.phase}:{plan.size}")
    problems = ProblemList(f"{model} on {target} is not tuned", CheckFailed, limit=40)
    for (family, name), at in sizes.items():
        problems.add(f"{family} {name}: no measurement that counts at {', '.join(at)}")
    problems.raise_if_any(hint=f"measure them: kernelgen tune {model} --target {target}")
