"""Owns the verdict table: what was checked, how far off it was, how far off it may be."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from kernelgen.report.tables import table
from kernelgen.verify.checks import Check

_NUMBERS = ("cases", "error", "bound")


def verdict_table(checks: Sequence[Check]) -> Table:
    """Misses first; every row shows its error beside the bound that was fixed before the run."""
    made = table("", ["verdict", "check", "cases", "error", "bound", "detail"], [], right=_NUMBERS)
    for check in sorted(checks, key=lambda check: check.passed):
        made.add_row(
            "[green]ok[/]" if check.passed else "[bold red]MISS[/]",
            escape(check.name),
            str(check.cases),
            f"{check.error:.2e}",
            f"{check.bound:.2e}",
            escape(check.detail),
        )
    return made
