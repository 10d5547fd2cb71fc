"""What tables cost: a look-up among the shipped rows, and all look-ups of a build together."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from time import process_time

from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import all_plans, lowered
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.families.triton_family import TritonFamily
from kernelgen.codegen.triton import source as source_module
from kernelgen.core.resources import tables_dir
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Graph
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match
from kernelgen.planner.planner import Planner, plan_sizes
from kernelgen.tables import TUNED, Tables

H200 = parse_target("sm_90:h200")
SIZES = json.loads(Path(__file__).parents[1].joinpath("archs/published_sizes.json").read_text())
LOOK_UP_S = 20e-6
BUILD_S = 1.0


@cache
def _graph() -> Graph:
    """The largest model that is known by name and has rows."""
    tables = Tables(tables_dir())
    by_size = sorted(SIZES, key=SIZES.__getitem__, reverse=True)
    graphs = (lowered(resolve(name), "bfloat16").graph for name in by_size)
    return next(graph for graph in graphs if _priced(graph, tables, 8))


def _priced(graph: Graph, tables: Tables, size: int) -> list[tuple[TritonFamily, Match, Sizes]]:
    """Every kernel that a plan of the shipped model might have, with its sizes, where a look-up is
    answered by rows."""
    planner = Planner(graph, H200, H200.target, catalogue(H200, tables))
    found = []
    for block in range(len(graph.blocks)):
        sizes = planner.block_sizes(block, plan_sizes("decode", size))
        for matches in planner.search(block, "decode").matches.values():
            for match in matches:
                family = match.family
                if isinstance(family, TritonFamily) and family.modelled(match, sizes, H200):
                    found.append((family, match, sizes))
    return [one for one in found if _answer(tables, *one)]


def _answer(tables: Tables, family: TritonFamily, match: Match, sizes: Sizes) -> bool:
    key = family.key(match, sizes, H200)
    found = tables.look_up(key, lambda row: family.unfit(match, sizes, H200, row))
    return found.verdict in TUNED


def test_a_look_up_of_a_kernel_takes_microseconds() -> None:
    """Exact at 8 and 32, between two rows at 24; each kernel's judgement of its rows included."""
    tables = Tables(tables_dir())
    for size in (8, 24, 32):
        priced = _priced(_graph(), tables, size)
        assert len(priced) >= 5
        best = min(_seconds(tables, priced) for _ in range(7))
        assert best <= LOOK_UP_S, size


def _seconds(tables: Tables, priced: list[tuple[TritonFamily, Match, Sizes]]) -> float:
    rounds = 20
    work = [
        (family.key(match, sizes, H200), family, match, sizes) for family, match, sizes in priced
    ]
    start = process_time()
    for _ in range(rounds):
        for key, family, match, sizes in work:
            tables.look_up(key, lambda row, f=family, m=match, s=sizes: f.unfit(m, s, H200, row))
    return (process_time() - start) / (rounds * len(work))


def test_tables_add_less_than_a_second_to_a_build() -> None:
    """All plans of a build, with and without rows; the code of rows is generated anew."""
    _planning(Path("no rows"))  # whatever is loaded once
    without = min(_planning(Path("no rows")) for _ in range(2))
    assert min(_planning(tables_dir()) for _ in range(2)) - without <= BUILD_S


def _planning(folder: Path) -> float:
    source_module._KNOWN.clear()
    start = process_time()
    all_plans(_graph(), H200, True, Tables(folder))
    return process_time() - start
