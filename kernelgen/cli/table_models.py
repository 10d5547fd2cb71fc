"""Owns what ties rows to models: which kernels of which models they are of, and the fit to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from kernelgen.archs.registry import builtin_models
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import lowered
from kernelgen.codegen.families.fit_samples import judged_rows, row_samples
from kernelgen.core.errors import UsageError
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Graph
from kernelgen.report.tuning_text import row_name
from kernelgen.tables import Row, Tables
from kernelgen.tables.checking import LAYOUT, device_folders
from kernelgen.tables.difference import read_place
from kernelgen.tables.fit import DeviceFit, fit
from kernelgen.tables.fit_file import fit_path, tables_digest, write_fit
from kernelgen.tables.lookup import illegal_text


def devices_with_rows(tables: Tables, target: str | None) -> tuple[tuple[str, str], ...]:
    """(SM, device) of the tables, or of one target; `UsageError` where there are no rows."""
    found = device_folders(tables.folder)
    if not any(_rows(tables, sm, name) for sm, name in found):
        raise UsageError("holds no rows", where=str(tables.folder), allowed=LAYOUT)
    if target is None:
        return found
    device = parse_target(target)
    place = (device.sm_name, device.name)
    if place not in found:
        have = ", ".join(f"{sm}:{name}" for sm, name in found) or "nothing"
        raise UsageError(f"no rows of {device.target}", where=str(tables.folder), allowed=have)
    return (place,)


@cache
def _graph(model: str) -> Graph:
    return lowered(resolve(model), "bfloat16").graph


def refit(
    tables: Tables, sm: str, device: str, models: Sequence[str] = ()
) -> tuple[DeviceFit | None, int]:
    """Fits the cost model to the rows of a device, writes `FIT.json`; the fit, and how many rows
    are not in it. Without rows of kernels that `models` (built-in ones) have there is no fit.
    """
    rows = _rows(tables, sm, device)
    target = parse_target(f"{sm}:{device}")
    samples = {}
    for graph in _graphs(models, rows):
        for sample in row_samples(graph, target, tables):
            samples[sample.family, sample.variant, sample.bucket] = sample
    if not samples:
        return None, len(rows)
    made = fit(samples.values(), tables_digest(tables.folder, sm, device))
    write_fit(fit_path(tables.folder, sm, device), made)
    return made, len(rows) - len(samples)


def _rows(tables: Tables, sm: str, device: str) -> tuple[Row, ...]:
    return read_place(tables.folder / sm / device).rows


def _graphs(models: Sequence[str], rows: Sequence[Row]) -> Iterator[Graph]:
    if rows:
        yield from (_graph(name) for name in models or builtin_models())


@dataclass(frozen=True)
class Judged:
    """Rows that kernels of built-in models cannot take, one line each."""

    stale: tuple[str, ...]
    illegal: tuple[str, ...]


def judged(tables: Tables) -> Judged:
    """What today's kernels say of the rows: which are stale, and which hold a tile that is illegal
    where they say that it was measured.
    """
    stale: dict[str, None] = {}
    illegal: dict[str, None] = {}
    for sm, name in device_folders(tables.folder):
        device = parse_target(f"{sm}:{name}")
        for graph in _graphs((), _rows(tables, sm, name)):
            for row, doubt in judged_rows(graph, device, tables):
                where = tables.where(row)
                if doubt.broken:
                    illegal[f"{where}: {illegal_text(row, doubt)}"] = None
                elif doubt.stale:
                    changed = f"measured {row.date}: its kernel's code has changed since"
                    stale[f"{where}: {row_name(row)}, {changed}"] = None
    return Judged(tuple(stale), tuple(illegal))
