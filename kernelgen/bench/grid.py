"""Owns a grid of text: the same on a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from kernelgen.report.tables import table


@dataclass(frozen=True)
class Grid:
    """A table of texts under one line that says what it shows; `left` columns hold words."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def terminal(grid: Grid) -> Group:
    """The grid under its title, which would be folded to the table's width inside of it."""
    right = grid.columns[grid.left :]
    return Group(Text(grid.title), table("", grid.columns, grid.rows, right=right))


def markdown_lines(grid: Grid) -> Iterator[str]:
    """The grid without its title, a line a row."""
    ruler = ("---" if i < grid.left else "--:" for i in range(len(grid.columns)))
    for cells in (grid.columns, tuple(ruler), *grid.rows):
        yield "| " + " | ".join(_escaped(cells)) + " |"


def _escaped(cells: Iterable[str]) -> Iterator[str]:
    return (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
