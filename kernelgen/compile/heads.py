"""Owns the headers of the compiler that are parsed once: half of the time of a small unit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kernelgen.compile.jobs import Job, JobResult, run_jobs
from kernelgen.compile.store import Store
from kernelgen.compile.toolchain import CppToolchain
from kernelgen.compile.units import Unit
from kernelgen.core.digest import digest_json

HEADS = "kg_heads.h"
_PARSED = HEADS + ".gch"
# What every unit includes in any case. Objects are the same to the byte with and without.
_INCLUDES = ("cstddef", "cstdint", "cstring", "immintrin.h", "type_traits")
HEADS_TEXT = "".join(f"#include <{name}>\n" for name in _INCLUDES)
_WORTH = 4
"""units of a set, below which reading the headers ahead takes longer than it saves"""


def place_heads(
    units: Iterable[Unit], stage: Path, store: Store, tools: CppToolchain, workers: int
) -> dict[str, tuple[str, ...]]:
    """Flags for the units of each set, by its name, to be compiled in folder `stage`.

    None for sets with few units or for the host half of a GPU's library, and where the compiler
    does not do it: then every unit reads its headers itself.
    """
    by_set: dict[str, list[Unit]] = {}
    for unit in units:
        by_set.setdefault(unit.isa.name, []).append(unit)
    wanted = {name: one for name, one in by_set.items() if len(one) >= _WORTH and one[0].isa.needs}
    keys = {name: _key(one[0], tools) for name, one in wanted.items()}
    missing = {name: one[0] for name, one in wanted.items() if store.get(keys[name]) is None}
    for name in wanted:
        (stage / name).mkdir(exist_ok=True)
        (stage / name / HEADS).write_text(HEADS_TEXT)
    jobs = {_job(unit, stage / name, tools): name for name, unit in missing.items()}

    def parsed(result: JobResult) -> None:
        path = result.job.cwd / _PARSED
        if not result.returncode and path.is_file():
            store.put(keys[jobs[result.job]], {_PARSED: path}, label=result.job.label)
            path.unlink()

    run_jobs(list(jobs), workers, parsed)
    found: dict[str, tuple[str, ...]] = {}
    for name in wanted:
        entry = store.get(keys[name])
        if entry is not None:
            (stage / name / _PARSED).symlink_to(entry.path(_PARSED))
            found[name] = ("-include", f"{name}/{HEADS}")
    return found


def _flags(unit: Unit) -> tuple[str, ...]:
    """Those of the set: a unit's own seed decides nothing here."""
    return tuple(flag for flag in unit.argv if not flag.startswith("-frandom-seed"))


def _key(unit: Unit, tools: CppToolchain) -> str:
    return digest_json(["heads", HEADS_TEXT, unit.isa.name, _flags(unit), tools.identity])


def _job(unit: Unit, folder: Path, tools: CppToolchain) -> Job:
    argv = (tools.compiler, *_flags(unit), "-x", "c++-header", HEADS, "-o", _PARSED)
    return Job(f"headers {unit.isa.name}", argv, folder)
