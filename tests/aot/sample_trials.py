"""Owns trying the choice of a token: guarded logits or a small head, the rule in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from gpu_trials import Tiny, Trial

from kernelgen.codegen.cuda.launches import Parameter, Pointer
from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.core.dtypes import BFLOAT16, FLOAT32, INT32
from kernelgen.ir.graph import BlockBuilder, Graph, Placement, Role
from kernelgen.ir.types import Dim, Sizes, Type
from kernelgen.ops import Linear, Sample, SelectRows
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel
from kernelgen.spec.model import CacheSpec
from kernelgen.verify.guarded import Guarded
from kernelgen.verify.interpreter import interpret
from kernelgen.verify.scenario import Request, Sampling, Scenario

HIDDEN = 32
UNSAMPLED = -7
POSITIONS = 512


@cache
def head(vocabulary: int) -> Tiny:
    """Chosen rows, projection, choice."""
    builder = BlockBuilder("head")
    x = builder.declare("x", Type((Dim.T, HIDDEN), BFLOAT16), Role.STREAM)
    tokens = builder.declare("logit_tokens", Type((Dim.B,), INT32), Role.STEP)
    rows = builder.apply("head.rows", SelectRows(), x, tokens)
    matrix = builder.declare("head.weight", Type((vocabulary, HIDDEN), BFLOAT16), Role.WEIGHT)
    logits = builder.apply("head", Linear(FLOAT32), rows, matrix)
    wanted = builder.declare("sampling", Type((Dim.B,), INT32), Role.STEP)
    sampled = builder.apply("sample", Sample(), logits, wanted)
    block = builder.build([("logits", logits), ("sampled", sampled)])
    graph = Graph("head", (block,), (Placement(0, None),), ((0, CacheSpec(1, 16, None, BFLOAT16)),))
    return Tiny(f"head of {vocabulary}", graph, vocabulary, POSITIONS)


def sample_step(*wanted: Sampling | None, history: int = 3) -> Scenario:
    """Requests with one token each that want these choices; None: logits only."""
    requests = tuple(Request(history + i, 1, i ^ 1, s or Sampling()) for i, s in enumerate(wanted))
    owners = tuple(-1 if s is None else i for i, s in enumerate(wanted))
    return Scenario(f"{wanted}", "decode", requests, tuple(range(len(wanted))), owners)


@dataclass
class SampleTrial(Trial):
    """The choice alone, or behind its product."""

    logits: Any = None
    """given logits; random ones where None"""
    spared: bool = False
    """whether the step says that nobody reads logits"""
    last: Guarded = field(init=False)

    def problems(self) -> list[str]:
        """What is wrong with chosen ids, `last_sampled`, logits and memory around."""
        self._run()
        return self._chosen() + self._around()

    def _run(self) -> None:
        made = gpu_kernel(self.kernel, self.choice, self.model.layout)
        self._prepare()
        self.made = made
        self.args.tensor[self.model.args.offset("counts") + 3] = int(self.spared)
        self.last = Guarded.of(
            torch.full((len(self.scenario.requests) + 2,), UNSAMPLED, dtype=torch.int32)
        )
        if "head" in self.meant or self.logits is not None:
            self._give_logits()
        for one in made.passes:
            sizes = Sizes(self.capacity, self.capacity, 64, self.capacity)
            interpret(one.unit, one.grid(sizes), [self._argument(p) for p in one.parameters])

    def _give_logits(self) -> None:
        rows = len(self.scenario.logit_tokens)
        given = self.given["head"].tensor
        given[:rows] = 3.0 * self.meant["head"][:rows] if self.logits is None else self.logits

    def _argument(self, parameter: Parameter) -> Any:
        return (
            self.last.tensor if parameter is Pointer.LAST_SAMPLED else super()._argument(parameter)
        )

    def _chosen(self) -> list[str]:
        rows, logits = len(self.scenario.logit_tokens), self.given["head"].tensor.double()
        logits = logits[:rows]
        want = reference(logits, self.scenario)
        want = [
            t if row >= 0 else -1 for t, row in zip(want, self.scenario.logit_rows, strict=True)
        ]
        got = self.given["sample"].tensor
        problems = (
            [] if got[:rows].tolist() == want else [f"chosen {got[:rows].tolist()}, meant {want}"]
        )
        if bool((got[rows:] != -1).any()):  # poison as an integer
            problems.append("ids of rows that nobody asked for were written")
        slots = [UNSAMPLED] * len(self.last.tensor)
        for token, row in zip(want, self.scenario.logit_rows, strict=True):
            if row >= 0:
                slots[self.scenario.requests[row].slot] = token
        if self.last.tensor.tolist() != slots:
            problems.append(f"last_sampled {self.last.tensor.tolist()}, meant {slots}")
        return problems

    def _around(self) -> list[str]:
        return self._damage(self.made) + (["last_sampled: damage"] if self.last.damage() else [])


def reference(logits: Any, scenario: Scenario) -> list[int]:
    """Every row's token by the op's own rule."""
    sampling = [scenario.requests[scenario.owners[t]].sampling for t in scenario.logit_tokens]
    single = [float(torch.tensor(s.top_p)) for s in sampling]
    view = SimpleNamespace(
        temperature=[float(torch.tensor(s.temperature)) for s in sampling],
        top_k=[s.top_k for s in sampling],
        top_p=single,
        seed=[s.seed for s in sampling],
        position=[scenario.positions[t] + 1 for t in scenario.logit_tokens],
        min_p=[float(torch.tensor(s.min_p)) for s in sampling],
    )
    (found,) = Sample().reference((logits, None), view)
    return list(found.tolist())


def trial(
    vocabulary: int,
    family: str,
    choice: Mapping[str, int],
    wanted: Sequence[Sampling | None],
    **more: Any,
) -> SampleTrial:
    """A trial of `sample`, or of `head_sample` with the product before it."""
    model, scenario = head(vocabulary), sample_step(*wanted)
    ops = ["sample"] if family == "sample" else ["head.rows", "head", "sample"]
    kernel = model.kernel(0, ops, family)
    kernel = Kernel("tried", kernel.match, (*kernel.signature, SCRATCH, COUNTERS))
    gemv = family == "head_sample" and choice["core"] == 0
    return SampleTrial(model, kernel, choice, scenario, 1 if gemv else len(wanted) + 2, **more)
