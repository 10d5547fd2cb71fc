"""Owns what is asked of one kernel: numbers, memory, threads, rows alone, rows that nobody owns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kernelgen.core.errors import CheckFailed
from kernelgen.ir.op import Trait
from kernelgen.verify.bounded import Bounded
from kernelgen.verify.built import Built, BuiltKernel
from kernelgen.verify.checks import Check, faults, worst
from kernelgen.verify.compare import compare, compare_choices, different
from kernelgen.verify.guarded import poison
from kernelgen.verify.library import KernelLibrary
from kernelgen.verify.operands import Given
from kernelgen.verify.place import Place
from kernelgen.verify.scenario import Scenario, planned_scenarios, scenarios
from kernelgen.verify.tensors import Tensor
from kernelgen.verify.trial import Ran, Trial

ROWS_ALONE = 4
Note = Callable[[str], None]


def check_kernel(
    built: Built, kernel: BuiltKernel, library: KernelLibrary, where: Place, note: Note
) -> list[Check]:
    """All checks of one kernel, each over all of its steps; `note` hears of every new step."""
    found: dict[str, list[Check]] = {}
    args, by_plan = built.manifest["args"], where.promises.by_plan
    positions = min(args["max_pages"] * 16, built.manifest["model"]["max_positions"])
    steps = planned_scenarios if by_plan else scenarios
    for layer in layers_of(built, kernel):
        for use in kernel.uses:
            trial = Trial(built, kernel, layer, use, library, where)
            for scenario in steps(use.phase, positions, use.size):
                named = replace(scenario, name=f"{scenario.name}, plan {use.phase} {use.size}")
                note((named if by_plan else scenario).name)
                for check in _checks(trial, named if by_plan else scenario):
                    found.setdefault(check.what, []).append(check)
    return [worst(checks) for checks in found.values()]


def layers_of(built: Built, kernel: BuiltKernel) -> tuple[int | None, ...]:
    """The last layer of the first group that the kernel serves and the first of the last one."""
    if not kernel.has_cache:
        return (None,)
    served = [[n for n in g.layers if n in kernel.layers] for g in built.groups]
    served = [layers for layers in served if layers]
    if not served:
        raise CheckFailed("no plan launches it for a layer", where=kernel.name)
    return tuple(dict.fromkeys((served[0][-1], served[-1][0])))


def _checks(trial: Trial, scenario: Scenario) -> Iterator[Check]:
    name, promises = trial.kernel.name, trial.where.promises
    given = trial.given(scenario)
    try:
        runs = [trial.run(given, threads) for threads in promises.runs]
    except promises.refusals as error:
        yield faults(name, "values", 1, 1, f"{scenario.name}: refused: {error}")
        return
    first = runs[0]
    yield from _values(trial, given, first)
    damage = [text for run in runs for text in run.damage]
    yield faults(name, "memory", len(runs), len(damage), f"{scenario.name}: {damage[:1]}")
    changed = sum(_different(first, run) for run in runs[1:])
    text = f"{scenario.name}: elements that differ between runs"
    yield faults(name, promises.repeats, len(runs) - 1, changed, text)
    yield from _alone(trial, given, first)
    yield from _unowned_rows(trial, given, first)


def _values(trial: Trial, given: Given, ran: Ran) -> Iterator[Check]:
    """Outputs, chosen ids and stored keys against the reference."""
    name, scenario = trial.kernel.name, given.scenario
    bounded, view = trial.reference(given)
    rows = _owned_rows(trial.kernel, scenario)
    for operand in trial.kernel.outputs:
        found = ran.outputs[operand.name]
        where = f"{scenario.name}: {operand.name}"
        if operand.name in bounded:
            want = bounded[operand.name]
            if operand.leading == "T":
                want, found = Bounded(want.value[rows], want.error[rows]), found[rows]
            yield compare(name, where, found, want)
        else:
            node = trial.kernel.block.nodes[trial.kernel.block.producer[operand.name]]
            yield compare_choices(name, where, found, bounded[node.inputs[0]], view, scenario)
    yield from _stored(trial, given, ran, bounded)
    yield _last_sampled(trial, given, ran)


def _owned_rows(kernel: BuiltKernel, scenario: Scenario) -> list[int]:
    """Token rows whose results mean something; attention writes zeros for the others."""
    if any(node.op.has(Trait.ATTENTION) for node in kernel.block.nodes):
        return list(range(scenario.tokens))
    return [t for t, owner in enumerate(scenario.owners) if owner >= 0]


def _stored(trial: Trial, given: Given, ran: Ran, bounded: dict[str, Bounded]) -> Iterator[Check]:
    """New keys and values at their places, page by page, and every other byte as it was."""
    import torch

    name, expected = trial.kernel.name, given.pool.clone()
    state, place = trial.kernel.written_state, trial.place
    if state is not None and place is not None:
        table, want = given.tables.entries[place.group.name], bounded[state]
        for row, request in enumerate(given.scenario.requests):
            if request.padding or not request.new:
                continue
            span = range(request.history, request.length)
            pages, at = place.where(table, row, span)
            sides = place.part.read(ran.pool, pages, at)
            place.part.write(expected, pages, at, *sides)
            cut = slice(span.start, span.stop)
            for side, what in zip(sides, ("keys", "values"), strict=True):
                value, error = (getattr(z, what)[row][cut] for z in (want.value, want.error))
                dense = Bounded(value, error)
                where = f"{given.scenario.name}: stored {what} of request {row}"
                yield compare(name, where, side, dense)
    count, text = different(ran.pool, expected), ""
    if count:
        touched = torch.nonzero((ran.pool != expected).any(1)).flatten().tolist()
        text = f"{given.scenario.name}: bytes of pages {touched[:5]} changed"
    yield faults(name, "memory", 1, count, text)


def _last_sampled(trial: Trial, given: Given, ran: Ran) -> Check:
    """The chosen id at the slot of each row that samples, every other slot as it was."""
    import torch

    expected = torch.from_numpy(given.ids.last_sampled).clone()
    scenario = given.scenario
    for node in trial.kernel.block.nodes:
        if node.op.has(Trait.SAMPLE):
            for b, owner in enumerate(scenario.logit_rows):
                if owner >= 0:
                    slot = scenario.requests[owner].slot
                    expected[slot] = ran.outputs[node.outputs[0]][b]
    count = different(ran.last_sampled, expected)
    where = f"{scenario.name}: slots of last_sampled that are wrong"
    return faults(trial.kernel.name, "memory", 1, count, where)


def _different(a: Ran, b: Ran) -> int:
    """Elements whose bits differ between two runs."""
    count = sum(different(a.outputs[name], b.outputs[name]) for name in a.outputs)
    return count + different(a.pool, b.pool) + different(a.last_sampled, b.last_sampled)


def _alone(trial: Trial, given: Given, ran: Ran) -> Iterator[Check]:
    """Some rows computed in a step of their own: right, and if promised the bits of company."""
    scenario, name = given.scenario, trial.kernel.name
    if scenario.tokens < 2:
        return
    asked = {t: b for b, t in enumerate(scenario.logit_tokens)}
    tokens = sorted(asked) if trial.kernel.by_logit_rows else _owners(scenario)
    for token in tokens[:: max(1, len(tokens) // ROWS_ALONE)][:ROWS_ALONE]:
        b = asked.get(token, 0)
        alone = given.only(trial.kernel, token, b)
        single = trial.run(alone, trial.where.promises.runs[0])
        if not trial.where.promises.alone_is_equal:
            yield from _values(trial, alone, single)
            continue
        count = 0
        for operand in trial.kernel.outputs:
            row = token if operand.leading == "T" else b
            pair = ran.outputs[operand.name][row], single.outputs[operand.name][0]
            count += different(*pair)
        count += _stored_otherwise(trial, given, ran, single, token)
        where = f"{scenario.name}: elements of row {token} that differ when it is alone"
        yield faults(name, "alone", 1, count, where)


def _owners(scenario: Scenario) -> list[int]:
    return [t for t, owner in enumerate(scenario.owners) if owner >= 0]


def _stored_otherwise(trial: Trial, given: Given, ran: Ran, single: Ran, token: int) -> int:
    """Elements of the token's stored key and value that differ between two runs."""
    place = trial.place
    if trial.kernel.written_state is None or place is None:
        return 0
    position, row = given.scenario.positions[token], given.scenario.owners[token]
    table = given.tables.entries[place.group.name]
    where = place.where(table, row, range(position, position + 1))
    sides = (place.part.read(run.pool, *where) for run in (ran, single))
    return sum(different(a, b) for a, b in zip(*sides, strict=True))


def _unowned_rows(trial: Trial, given: Given, ran: Ran) -> Iterator[Check]:
    """NaN in the rows of padding, and in those whose logits nobody asked, must not reach others."""
    scenario, kernel = given.scenario, trial.kernel
    used = set(scenario.logit_tokens) if kernel.by_logit_rows else set(_owners(scenario))
    unused = [t for t in range(scenario.tokens) if t not in used]
    names = [o.name for o in kernel.operands if o.role == "input" and o.leading == "T"]
    if not unused or not names:
        return
    inputs = dict(given.inputs)
    for name in names:
        inputs[name] = inputs[name].clone()
        poisoned: Tensor = inputs[name][unused]
        poison(poisoned)
        inputs[name][unused] = poisoned
    after: Any = trial.run(replace(given, inputs=inputs), trial.where.promises.runs[0])
    keep = sorted(used)
    for operand in kernel.outputs:
        if operand.leading == "T":
            for run in (ran, after):
                run.outputs[operand.name] = run.outputs[operand.name][keep]
    where = f"{scenario.name}: elements that NaN in rows {unused[:5]} changed"
    yield faults(kernel.name, "poison", 1, _different(ran, after), where)
