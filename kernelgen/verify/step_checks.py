"""Owns what is asked of whole steps: prepared values, replays, padding, logits nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kernelgen.verify.arguments import Ids, Tables, block_tables, token_ids, write_args
from kernelgen.verify.built import Built, Use
from kernelgen.verify.checks import Check, faults, worst
from kernelgen.verify.library import PREPARE, KernelLibrary
from kernelgen.verify.place import Place
from kernelgen.verify.scenario import (
    Scenario,
    beginning,
    ladder_scenario,
    mixed_scenario,
    planned_scenarios,
)
from kernelgen.verify.step_trial import StepTrial, Taken

STEP = "step"
"""names the checks of whole steps where kernels are named"""
MOST_TOKENS = 513
_STEP_VALUES = ("token_ids", "positions", "rows")
_ALIGNED = 256
Note = Callable[[str], None]


def check_steps(built: Built, library: KernelLibrary, where: Place, note: Note) -> list[Check]:
    """Every plan: each decode size and its neighbours, one mixed step of each size."""
    trial = StepTrial(built, library, where)
    found: dict[str, list[Check]] = {}
    args = built.manifest["args"]
    positions = min(args["max_pages"] * 16, built.manifest["model"]["max_positions"])
    ladder = sorted(p.size for p in built.plans if p.phase == "decode")
    widest = ladder_scenario(ladder[-1], positions)
    content = trial.content(widest)
    near = {n for size in ladder for n in (size - 1, size, size + 1)}
    for rows in sorted(n for n in near if 0 < n <= ladder[-1]):
        scenario = beginning(widest, rows)
        note(scenario.name)
        for check in _step(trial, built.plan("decode", rows), scenario, content):
            found.setdefault(check.what, []).append(check)
    for plan in (p for p in built.plans if p.phase == "mixed"):
        scenario = mixed_scenario(min(plan.size, MOST_TOKENS), positions)
        note(f"{scenario.name}, plan of {plan.size}")
        for check in _step(trial, plan, scenario, trial.content(scenario)):
            found.setdefault(check.what, []).append(check)
    return [worst(checks) for checks in found.values()]


def _step(trial: StepTrial, plan: Use, scenario: Scenario, content: Any) -> Iterator[Check]:
    where = f"{scenario.name}, plan of {plan.size}"
    clean = trial.run(plan, scenario, content, poisoned=False)
    eager = trial.run(plan, scenario, content, poisoned=True)
    runs = [clean, eager]
    yield finite(eager, where)
    differ = "logits and ids that differ"
    text = f"{where}: {differ} where unused memory is NaN"
    yield faults(STEP, "poison", 1, clean.differs(eager), text)
    if plan.phase == "decode":
        replayed = trial.run(plan, scenario, content, poisoned=True, recorded=True)
        runs.append(replayed)
        count = eager.differs(replayed) + eager.cache_differs(replayed)
        yield faults(STEP, "replay", 1, count, f"{where}: {differ} in a replay, or cached bytes")
    unread = trial.run(plan, scenario, content, poisoned=True, asked=False)
    count = eager.choices_differ(unread)
    yield faults(STEP, "unread", 1, count, f"{where}: ids that differ when nobody reads logits")
    damage = [text for run in (*runs, unread) for text in run.damage]
    yield faults(STEP, "memory", len(runs) + 1, len(damage), f"{where}: {damage[:1]}")


def finite(taken: Taken, where: str) -> Check:
    """Logits and ids that nobody wrote, or that no vocabulary has."""
    import torch

    wild = int((~torch.isfinite(taken.logits)).sum())
    ids = int(((taken.sampled < -1) | (taken.sampled >= taken.logits.shape[-1])).sum())
    return faults(STEP, "finite", 1, wild + ids, f"{where}: logits or ids that are none")


def check_prepare(built: Built, library: KernelLibrary, where: Place, note: Note) -> list[Check]:
    """Ids, positions and request rows that the first launch of a step leaves in the workspace."""
    args = built.manifest["args"]
    positions = min(args["max_pages"] * 16, built.manifest["model"]["max_positions"])
    found = []
    for plan in built.plans:
        for scenario in planned_scenarios(plan.phase, positions, plan.size):
            note(scenario.name)
            rng = np.random.default_rng(plan.size)
            tables = block_tables(scenario, built.groups, rng)
            ids = token_ids(scenario, built.manifest["model"]["vocab"], rng)
            found.append(_prepared(built, library, where, plan, scenario, tables, ids))
    return [worst(found)]


def _prepared(
    built: Built,
    library: KernelLibrary,
    where: Place,
    plan: Use,
    scenario: Scenario,
    tables: Tables,
    ids: Ids,
) -> Check:
    import torch

    args = built.manifest["args"]
    words = where.copy(torch.from_numpy(write_args(args, scenario, tables, ids)))
    workspace = where.empty((plan.workspace_bytes,), "uint8")
    last = where.copy(torch.from_numpy(ids.last_sampled))
    library.bind("workspace", workspace.tensor)
    library.bind("last_sampled", last.tensor)
    library.prepare(plan.number, words.tensor)
    where.wait()
    stride = -(-4 * args["max_tokens"] // _ALIGNED) * _ALIGNED // 4
    held = workspace.content[: 3 * 4 * stride].view(torch.int32).view(3, stride)
    rest = plan.size - scenario.tokens
    wanted = {
        "token_ids": [*ids.meant.tolist(), *[-1] * rest],
        "positions": [*scenario.positions, *[0] * rest],
        "rows": [*scenario.owners, *[-1] * rest],
    }
    wrong = []
    for name, values in zip(_STEP_VALUES, held, strict=True):
        if values[: plan.size].tolist() != wanted[name]:
            wrong.append(name)
        if bool((values[plan.size :] != -1).any()):
            wrong.append(f"{name} behind the plan's rows")
    if workspace.damage() + words.damage() + last.damage():
        wrong.append("memory around its buffers")
    return faults(
        PREPARE, "values", 1, len(wrong), f"{scenario.name}, plan of {plan.size}: {wrong}"
    )
