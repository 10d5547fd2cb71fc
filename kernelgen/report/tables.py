"""Owns tables: on a terminal, and as aligned lines of plain text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

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


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for each row of texts, columns under each other."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
