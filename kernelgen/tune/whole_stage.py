"""Owns a whole decode step on the GPU: all weights, all launches, with any tile of any kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from kernelgen.codegen.cuda.carveout import carve_out
from kernelgen.formats import weight_format
from kernelgen.formats.format import WeightFormat
from kernelgen.planner.plan import COUNTERS, SCRATCH
from kernelgen.tune.bundle import (
    Argument,
    Candidate,
    Group,
    Launch,
    ModelFacts,
    StepFacts,
    Use,
    WeightFacts,
)
from kernelgen.tune.driver import Described, Parameters, Prepared, parameters
from kernelgen.tune.packed_weights import random_packed
from kernelgen.tune.stage import STEP_VALUES, Stage
from kernelgen.tune.step_data import GREEDY, Requests, args_words, pages_of, requests_of

_ALIGN = 256
_SPARED = 3
"""word of `counts` that says that nobody reads the logits of greedy rows"""

Tensor = Any
Choices = Mapping[str, str]
"""group → candidate; groups that are not in it have what builds use today"""
Load = Callable[[Launch, int], Prepared]
"""a launch, and the percent of shared memory that it asks for"""


@dataclass
class WholeStep:
    """The buffers of one step, bound to the places that its launches name."""

    step: StepFacts
    groups: Mapping[str, Group]
    model: ModelFacts
    stage: Stage
    load: Load
    weights: Mapping[str, Tensor]
    pool: Tensor
    args: Tensor
    workspace: Tensor
    logits: Tensor
    sampled: Tensor
    last_sampled: Tensor
    own: Mapping[str, tuple[Tensor, Tensor]]
    """group → scratch and counters"""
    _known: dict[tuple[str, str], list[Prepared]] = field(default_factory=dict)

    @staticmethod
    def of(
        stage: Stage, step: StepFacts, groups: Mapping[str, Group], model: ModelFacts, load: Load
    ) -> WholeStep:
        """Allocate and fill everything: as much as the model takes when it is served."""
        import torch

        device = stage.device
        requests = requests_of(groups[step.uses[0].group], model, every_logit=False)
        count = pages_of(requests)
        pages = (1 + np.random.default_rng(5).permutation(count)).astype(np.int32)
        rows = max(step.extents.rows, step.extents.row_capacity)

        def zeros(*shape: int, kind: torch.dtype = torch.uint8) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        mine = {use.group: groups[use.group] for use in step.uses}
        return WholeStep(
            step=step,
            groups=groups,
            model=model,
            stage=stage,
            load=load,
            weights=_weights(stage, step.weights, model),
            pool=stage.pool(model, 1 + count),
            args=torch.from_numpy(_args(model, requests, pages)).to(device),
            workspace=zeros(step.workspace_bytes + _ALIGN),
            logits=zeros(rows, model.vocabulary, kind=torch.float32),
            sampled=zeros(rows, kind=torch.int32),
            last_sampled=zeros(model.max_rows, kind=torch.int32),
            own={
                name: (
                    zeros(max(c.scratch_bytes for c in g.candidates) + _ALIGN),
                    zeros(max(c.counters for c in g.candidates) + 64, kind=torch.int32),
                )
                for name, g in mine.items()
            },
        )

    def launch(self, choices: Choices, stream: int) -> None:
        """Everything once, as builds launch it."""
        for number, launch in enumerate(self.step.prepare):
            prepared = self._prepared("", str(number), (launch,))
            given = parameters([self._plain(a, None) for a in launch.arguments])
            prepared[0].run(given, stream, overlap=launch.pdl)
        for use in self.step.uses:
            candidate = self.candidate(use.group, choices)
            ready = self._prepared(use.group, candidate.id, candidate.launches)
            for launch, one in zip(candidate.launches, ready, strict=True):
                one.run(self._parameters(use, launch), stream, overlap=launch.pdl)

    def candidate(self, group: str, choices: Choices) -> Candidate:
        """What a group is launched with."""
        one = self.groups[group]
        wanted = choices.get(group)
        for candidate in one.candidates:
            if wanted == candidate.id or (
                wanted is None and dict(candidate.choice) == dict(one.before)
            ):
                return candidate
        raise LookupError(f"{group} has no candidate {wanted or 'that builds use'}")

    def keep_logits(self, kept: bool) -> None:
        """Whether the step stores logits that nobody reads."""
        self.args[self.model.offset("counts") + _SPARED] = int(not kept)

    def _prepared(self, group: str, name: str, launches: tuple[Launch, ...]) -> list[Prepared]:
        if (group, name) not in self._known:
            step = self.step if group else None  # what opens a step is no plan's own
            streamed, ringed = (step.streams, step.rings) if step else (False, False)
            self._known[group, name] = [
                self.load(one, carve_out(one.shared_bytes, streamed=streamed, ringed=ringed))
                for one in launches
            ]
        return self._known[group, name]

    def _parameters(self, use: Use, launch: Launch) -> Parameters:
        return parameters([self._value(argument, use) for argument in launch.arguments])

    def _value(self, argument: Argument, use: Use) -> int | Described:
        if argument.kind == "matrix":
            assert argument.matrix is not None and self.stage.describe is not None
            return self.stage.describe(self._operand(argument.number, use), argument.matrix)
        if argument.kind == "operand":
            return self._operand(argument.number, use)
        return self._plain(argument, use)

    def _operand(self, number: int, use: Use) -> int:
        """Address of what the launch is given for a value of its kernel's signature."""
        name = self.groups[use.group].signature[number]
        if name in (SCRATCH, COUNTERS):
            return int(self.own[use.group][name == COUNTERS].data_ptr())
        given = use.given[number]
        if given.kind == "buffer":
            return int(self.workspace.data_ptr()) + given.number
        if given.kind == "weight":
            return int(self.weights[given.name].data_ptr())
        if given.kind == "state":
            return int(self.pool.data_ptr())
        if given.kind == "bound":
            return int({"logits": self.logits, "sampled": self.sampled}[given.name].data_ptr())
        return self._step_value(given.name)

    def _step_value(self, name: str) -> int:
        if name in STEP_VALUES:
            return int(self.workspace.data_ptr()) + self.step.values[STEP_VALUES.index(name)]
        return int(self.args.data_ptr())

    def _plain(self, argument: Argument, use: Use | None) -> int:
        """Parameters that no operand stands behind."""
        kind = argument.kind
        if kind == "integer":
            return argument.number
        if kind in STEP_VALUES or kind == "args":
            return self._step_value(kind)
        layer = None if use is None or use.layer is None else self.model.layer[use.layer]
        if kind == "layer_offset":
            return layer.offset_bytes if layer else 0
        if kind == "block_table":
            assert layer is not None
            group = self.model.cache_groups[layer.group].name
            return int(self.args[self.model.offset(f"block_table.{group}") :].data_ptr())
        if kind in ("scratch", "counters"):
            assert use is not None
            return int(self.own[use.group][kind == "counters"].data_ptr())
        known = {
            "cache": self.pool,
            "logits": self.logits,
            "sampled": self.sampled,
            "last_sampled": self.last_sampled,
        }
        return int(known[kind].data_ptr())


def _args(model: ModelFacts, requests: Requests, pages: Any) -> Any:
    ids = np.random.default_rng(11).integers(0, model.vocabulary, requests.tokens, dtype=np.int32)
    return np.ascontiguousarray(args_words(model, requests, ids, pages, GREEDY, spared=True))


def _weights(
    stage: Stage, weights: tuple[WeightFacts, ...], model: ModelFacts
) -> dict[str, Tensor]:
    """Matrices are slices of the arenas, one behind the other: every layer has its own memory."""
    import torch

    tables = {t.name: t for t in model.tables}
    packed: dict[tuple[object, ...], Tensor] = {}
    found: dict[str, Tensor] = {}
    plain: dict[str, list[WeightFacts]] = {}
    for one in weights:
        if one.name in tables:
            found[one.name] = stage.table(tables[one.name])
        elif one.stored:
            found[one.name] = _packed(stage, one, packed)
        elif len(one.shape) > 1:
            plain.setdefault(one.dtype, []).append(one)
        else:
            made = torch.empty(one.shape, device=stage.device).uniform_(0.5, 1.5)
            found[one.name] = made.to(getattr(torch, one.dtype))
    for dtype, mine in plain.items():
        sizes = [-(-prod(one.shape) // _ALIGN) * _ALIGN for one in mine]
        arena, at = stage.arena(dtype, sum(sizes)), 0
        for one, size in zip(mine, sizes, strict=True):
            found[one.name] = arena[at : at + prod(one.shape)]
            at += size
    return found


def _packed(stage: Stage, one: WeightFacts, made: dict[tuple[object, ...], Tensor]) -> Tensor:
    """One matrix of each kind and shape is made, the others are its copies."""
    kind = weight_format(one.stored)
    assert isinstance(kind, WeightFormat)
    key = (one.stored, *one.shape)
    if key not in made:
        made[key] = random_packed(kind, one.shape, stage.device, len(made) + 1)
        return made[key]
    return made[key].clone()
