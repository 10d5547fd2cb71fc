"""Owns the pairs that the cost model is fitted to: what it says of a kernel, what a row says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernelgen.codegen.families.triton import triton_families
from kernelgen.codegen.families.triton_family import TritonFamily
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match
from kernelgen.planner.planner import Planner, plan_sizes
from kernelgen.tables import Row, Tables
from kernelgen.tables.fit import Sample
from kernelgen.tables.lookup import Doubt


@dataclass(frozen=True)
class _Found:
    """A row with the kernel that it was measured on, at the sizes of its bucket."""

    row: Row
    family: TritonFamily
    match: Match
    sizes: Sizes


def row_samples(graph: Graph, device: Device, tables: Tables) -> Iterator[Sample]:
    """One sample for every row of `device` that a kernel of the model answers to, in any of its
    plans. Rows whose kernel has other code today, or other tiles, are left out.

    The model's side is its own best tile and not the row's: that is what a plan without a row
    would say, so the fit also undoes the optimism of taking the best of many estimates.
    """
    for found in _found(graph, device, tables):
        parts = found.family.modelled(found.match, found.sizes, device)
        if parts and not found.family.unfit(found.match, found.sizes, device, found.row):
            row = found.row
            yield Sample(row.family, row.variant, row.bucket, parts, row.us)


def judged_rows(graph: Graph, device: Device, tables: Tables) -> Iterator[tuple[Row, Doubt]]:
    """Every row that a kernel of the model answers to, and why it cannot be used, if it cannot."""
    for found in _found(graph, device, tables):
        if found.family.modelled(found.match, found.sizes, device):
            yield found.row, found.family.unfit(found.match, found.sizes, device, found.row)


def _found(graph: Graph, device: Device, tables: Tables) -> Iterator[_Found]:
    planner = Planner(graph, device, device.target, triton_families(tables))
    done: set[tuple[str, str, str]] = set()
    for block in sorted({p.block for p in graph.sequence}):
        for phase in ("decode", "mixed"):
            for matches in planner.search(block, phase).matches.values():
                for match in matches:
                    for found in _of_match(planner, block, match, tables):
                        place = (found.row.family, found.row.variant, found.row.bucket)
                        if place not in done:
                            done.add(place)
                            yield found


def _of_match(planner: Planner, block: int, match: Match, tables: Tables) -> Iterator[_Found]:
    family, device = match.family, planner.device
    assert isinstance(family, TritonFamily)
    for row in tables.of_variant(device.sm_name, device.name, family.name, match.variant):
        bucket = row.key.bucket
        if bucket.phase == match.phase:
            sizes = planner.block_sizes(block, plan_sizes(bucket.phase, bucket.size))
            yield _Found(row, family, match, sizes)
