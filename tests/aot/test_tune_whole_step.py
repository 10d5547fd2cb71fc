"""A whole step as tuning launches it, under Triton's interpreter, against the ops' references."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_trials import DEVICE, architectures, tiny
from test_tune_reference import ELEMENTS, stage_of

from kernelgen.codegen.cuda.launches import GpuKernel
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.triton.prepare import prepare_kernel
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.ir.parameters import parameters as graph_parameters
from kernelgen.ir.types import Sizes
from kernelgen.tables import Bucket, Tables
from kernelgen.tune.bundle import Candidate, Extents, Group, Launch, group_id
from kernelgen.tune.collecting import argument_of, group_of
from kernelgen.tune.compiling import Compiled
from kernelgen.tune.driver import Parameters
from kernelgen.tune.facts import model_facts
from kernelgen.tune.groups import ModelGroups, Planned
from kernelgen.tune.whole_emit import in_steps, plans_of, step_facts
from kernelgen.tune.whole_stage import WholeStep
from kernelgen.verify.evaluate import Chunk, Evaluator, feed
from kernelgen.verify.interpreter import install, interpret

BUCKET = Bucket("decode", 2)


class Interpreted:
    """A launch that reads its operands at the addresses that it is given."""

    def __init__(self, unit: TritonUnit, launch: Launch, ends: Callable[[int], int]) -> None:
        self.unit, self.launch, self.ends = unit, launch, ends

    def run(self, given: Parameters, stream: int, *, overlap: bool) -> None:
        values = []
        for value, said in zip(given.words[1], self.unit.signature, strict=True):
            pointer = said.type.startswith("*")
            values.append(self._tensor(value, ELEMENTS[said.type]) if pointer else value)
        interpret(self.unit, self.launch.grid, values)

    def _tensor(self, address: int, kind: torch.dtype) -> torch.Tensor:
        size = (self.ends(address) - address) // kind.itemsize * kind.itemsize
        return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=kind)


def launches(kernel: GpuKernel, sizes: Sizes, units: dict[str, TritonUnit]) -> tuple[Launch, ...]:
    """Launches whose code is known by the name of its unit."""
    units |= {one.unit.name: one.unit for one in kernel.passes}
    return tuple(
        Launch(
            one.unit.name, "kernel", one.grid(sizes), 32, 0, False, False, 0,
            tuple(argument_of(p, sizes, iter(())) for p in one.parameters),
        )
        for one in kernel.passes
    )  # fmt: skip


def group_with_tiles(planned: Planned, units: dict[str, TritonUnit], model: str) -> Group:
    """As `group_of` makes it once everything is compiled."""
    sizes = planned.kernel.launch_sizes(planned.sizes)
    bare = group_of(
        planned, model, Compiled({}, {u.name: "" for t in planned.tiles for u in t.units}), {}
    )
    candidates = tuple(
        Candidate(
            dict(t.selected.point.choice), launches(t.kernel, sizes, units), t.scratch_bytes,
            t.counters, t.source, 1.0, "fast",
        )
        for t in planned.tiles
    )  # fmt: skip
    return replace(bare, candidates=candidates, extents=replace(bare.extents, context=1))


def whole_step(architecture: str) -> tuple[WholeStep, Any]:
    """The step of two requests without a past, on a stage in ordinary memory."""
    install()
    model = tiny(architecture, BFLOAT16)
    tables = Tables(Path("no rows"))
    device = replace(DEVICE, features=DEVICE.features - {"wgmma"})  # no rings: no descriptors
    groups = ModelGroups(model.graph, device, model.layout, tables, "quick", 1.15)
    plans = plans_of(model.graph, device, tables, (BUCKET,))
    planned = in_steps(groups.at(BUCKET), plans, frozenset())
    facts = model_facts(model.graph, model.schema, model.args, model.vocab)
    units: dict[str, TritonUnit] = {}
    made = {g.id: g for p in planned if (g := group_with_tiles(p, units, facts.name))}
    plan = plans[BUCKET]
    opening = launches(prepare_kernel(model.args, model.vocab), plan.sizes, units)
    step = step_facts(
        plan, BUCKET, planned, opening, model.args, lambda key: group_id(*key, facts.name)
    )
    step = replace(step, extents=replace(Extents.of(plan.sizes), context=1))
    held: list[torch.Tensor] = []

    def ends(address: int) -> int:
        for tensor in held:
            start = tensor.untyped_storage().data_ptr()
            if start <= address < start + tensor.untyped_storage().nbytes():
                return start + tensor.untyped_storage().nbytes()
        raise AssertionError("an address that nothing lies at")

    one = WholeStep.of(
        stage_of(), step, made, facts,
        lambda launch, carve_out: Interpreted(units[launch.code], launch, ends),  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    held += [one.pool, one.args, one.workspace, one.logits, one.sampled, one.last_sampled]
    held += [*one.weights.values(), *(t for pair in one.own.values() for t in pair)]
    return one, model


def expected(one: WholeStep, model: Any) -> np.ndarray:
    """Logits of the two tokens by the ops, in float64."""
    weights = {
        p.name: one.weights[p.name].view(*p.type.shape).double()
        for p in graph_parameters(model.graph)
    }
    at = one.model.offset("token_ids")
    rows = []
    for token in one.args[at : at + 2].tolist():
        runner = Evaluator(model.graph, weights, dtype=torch.float64, capacity=1)
        rows.append(runner.step(feed([Chunk(0, 0, [token])], every_logit=True))["logits"])
    return torch.cat(rows).numpy()


@pytest.mark.parametrize("architecture", [architectures()[0], architectures()[-1]])
def test_every_launch_is_given_its_place(architecture: str) -> None:
    """Roundings of a few layers are the only difference, with today's tiles and with others."""
    one, model = whole_step(architecture)
    wanted = expected(one, model)
    others = {g: one.groups[g].candidates[-1].id for g in one.step.tried}
    assert others, "no kernel has a choice"
    for choices in ({}, others) if architecture == architectures()[-1] else ({},):
        one.logits.fill_(float("nan"))
        one.keep_logits(True)
        one.launch(choices, 0)
        found = one.logits[:2].double().numpy()
        assert np.abs(found - wanted).max() <= 0.05 * np.abs(wanted).max()
        assert not any(int(c.count_nonzero()) for _, c in one.own.values())
    one.keep_logits(False)
    assert int(one.args[one.model.offset("counts") + 3]) == 1
    with pytest.raises(LookupError, match="no candidate"):
        one.candidate(one.step.tried[0], {one.step.tried[0]: "nothing"})
