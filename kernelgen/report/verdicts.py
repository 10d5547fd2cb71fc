"""Owns the verdict table: what was checked, how far off it was, how far off it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table


class Check(Protocol):
    """One comparison, as `verify` returns it."""

    @property
    def name(self) -> str:
        """The kernel or case."""

    @property
    def passed(self) -> bool:
        """Whether the error is within the bound."""

    @property
    def error(self) -> float:
        """Largest difference found."""

    @property
    def bound(self) -> float:
        """Largest difference allowed, fixed before the run."""

    @property
    def detail(self) -> str:
        """What was compared, or where the worst difference lies."""


def verdict_table(checks: Sequence[Check]) -> Table:
    """Failures first; every row shows its error beside its bound."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, justify in (("verdict", "left"), ("check", "left"), ("error", "right")):
        made.add_column(name, justify=justify)  # type: ignore[arg-type]
    made.add_column("bound", justify="right")
    made.add_column("detail", overflow="fold")
    for check in sorted(checks, key=lambda check: check.passed):
        word = "[green]ok[/]" if check.passed else "[bold red]MISS[/]"
        cells = (escape(check.name), f"{check.error:.2e}", f"{check.bound:.2e}")
        made.add_row(word, *cells, escape(check.detail))
    return made
