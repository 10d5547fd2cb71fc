"""Owns tables on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
) -> Table:
    """A plain table of texts; `right` names columns of numbers. Cells are never read as markup."""
    made = Table(title=escape(title) or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made
