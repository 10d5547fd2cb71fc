"""Owns one kernel in a library: its reference on given operands, and guarded runs of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernelgen.ir.graph import Role, Value
from kernelgen.ops.step import DenseCache, StepView
from kernelgen.verify.arguments import step_values, step_view, write_args
from kernelgen.verify.bounded import Bounded
from kernelgen.verify.bounds import evaluate_bounded
from kernelgen.verify.built import Built, BuiltKernel, Operand, Use
from kernelgen.verify.compare import different
from kernelgen.verify.guarded import poison
from kernelgen.verify.library import KernelLibrary
from kernelgen.verify.operands import Given, cache_place, random_operands, random_weights
from kernelgen.verify.place import Buffer, Place
from kernelgen.verify.scenario import Scenario

_UNSAMPLED = -7
"""fills integer outputs: unlike −1, nothing that a kernel writes"""
_NO_LAYER = "a kernel with a cache is tried for a layer"


@dataclass
class Ran:
    """What a run has left behind."""

    outputs: dict[str, Any]
    """every output buffer by name"""
    pool: Any
    last_sampled: Any
    damage: list[str]
    """what it has done to memory that is none of its outputs"""


class Trial:
    """Tries one kernel of a build for one layer, as plans use it."""

    def __init__(
        self,
        built: Built,
        kernel: BuiltKernel,
        layer: int | None,
        use: Use,
        library: KernelLibrary,
        where: Place,
    ) -> None:
        self.built, self.kernel, self.use = built, kernel, use
        self.library, self.where = library, where
        self.place = None if layer is None else cache_place(built, kernel, layer, where)
        self.weights = random_weights(built, kernel, where)

    def given(self, scenario: Scenario) -> Given:
        """Fresh random operands for a scenario."""
        return random_operands(self.built, self.kernel, self.place, scenario)

    def reference(self, given: Given) -> tuple[dict[str, Bounded], StepView]:
        """Every value of the kernel's sub-graph with its bound, and the step behind them."""
        steps = step_values(given.scenario, given.ids)
        view = step_view(given.scenario, steps)
        block = self.kernel.block
        outside = {
            value.name: self._meant(value, given, steps)
            for value in block.values
            if value.name not in block.producer
        }
        return evaluate_bounded(block, outside, view, self.where.promises.arithmetic), view

    def _meant(self, value: Value, given: Given, steps: Mapping[str, Any]) -> Any:
        if value.role is Role.STATE:
            assert given.cache is not None, _NO_LAYER
            keys, values = given.cache.keys, given.cache.values
            return DenseCache([k.double() for k in keys], [v.double() for v in values])
        if value.role is Role.STEP:
            return steps[value.name]
        if value.name in self.weights.meant:
            return self.weights.meant[value.name]
        found = given.inputs[value.name]
        return found.double() if found.is_floating_point() else found.long()

    def run(self, given: Given, threads: int) -> Ran:
        """One run on guarded copies. ValueError and the like are the library's refusals."""
        import torch

        words = write_args(self.built.manifest["args"], given.scenario, given.tables, given.ids)
        kept = {name: self._on_plan(name, value) for name, value in given.inputs.items()}
        kept["args"] = torch.from_numpy(words)
        buffers = {name: self.where.copy(value) for name, value in kept.items()}
        buffers["pool"] = self.where.copy(given.pool)
        buffers["last_sampled"] = self.where.copy(torch.from_numpy(given.ids.last_sampled))
        rows = self._rows(given.scenario)
        operands = [self._operand(o, given, rows, buffers) for o in self.kernel.operands]
        self._bind(buffers, rows[1])
        self.library.set_threads(threads)
        args = buffers["args"].tensor
        if self.where.promises.by_plan:
            self.library.prepare(self.use.number, args)
        self.library.run(self.kernel.name, self.use.number, args, operands)
        self.where.wait()
        outputs = {o.name: buffers[o.name].content for o in self.kernel.outputs}
        return Ran(
            outputs={o.name: outputs[o.name][: self._used(o, given)] for o in self.kernel.outputs},
            pool=buffers["pool"].content,
            last_sampled=buffers["last_sampled"].content,
            damage=[*self._damage(kept, buffers), *self._beyond(outputs, given)],
        )

    def _rows(self, scenario: Scenario) -> tuple[int, int]:
        """Token rows and logit rows of the buffers: those of the step, or all of the plan."""
        if self.where.promises.by_plan:
            return self.use.size, self.use.logit_rows
        return scenario.tokens, len(scenario.logit_tokens)

    def _used(self, o: Operand, given: Given) -> int:
        """Rows of an operand that the step uses."""
        scenario = given.scenario
        return o.sizes(scenario.tokens, len(scenario.logit_tokens))[0]

    def _on_plan(self, name: str, value: Any) -> Any:
        """An input with all rows that its buffer has; those behind the step's are poison."""
        import torch

        if not self.where.promises.by_plan:
            return value
        operand = next(o for o in self.kernel.operands if o.name == name)
        shape = operand.sizes(self.use.size, self.use.logit_rows)
        whole = torch.empty(shape, dtype=value.dtype)
        poison(whole)
        whole[: len(value)] = value
        return whole

    def _damage(self, kept: Mapping[str, Any], buffers: Mapping[str, Buffer]) -> Iterator[str]:
        for name, guarded in {**buffers, **self.weights.given}.items():
            if guarded.damage():
                yield f"{name}: {guarded.damage()} bytes around it were written"
        for name, before in kept.items():
            if different(buffers[name].content, before):
                yield f"{name} was changed"
        if "counters" in buffers and bool(buffers["counters"].tensor.any()):
            yield "counters are not zero again"

    def _beyond(self, outputs: Mapping[str, Any], given: Given) -> Iterator[str]:
        """Rows of the plan that are none of the step's have to stay as they were."""
        import torch

        for operand in self.kernel.outputs:
            rest = outputs[operand.name][self._used(operand, given) :]
            touched = ~torch.isnan(rest) if rest.is_floating_point() else rest != _UNSAMPLED
            if touched.any():
                yield f"{operand.name}: rows behind those of the step were written"

    def _operand(
        self, o: Operand, given: Given, rows: tuple[int, int], buffers: dict[str, Buffer]
    ) -> Any:
        """What the kernel is handed for one operand; its buffers are added to `buffers`."""
        if o.role == "step":
            return self.library.step_value(o.name)
        if o.role == "cache":
            assert self.place is not None, _NO_LAYER
            return self.library.layer(self.built.layers.index(self.place.layer))
        if o.role == "weight":
            return self.weights.given[o.name].tensor
        if o.role == "counters":
            return None
        if o.role == "scratch":
            buffers[o.name] = self.where.empty((self._scratch_bytes(given.scenario),), "uint8")
        elif o.role == "output":
            buffers[o.name] = self.where.empty(o.sizes(*rows), o.dtype)
            if not buffers[o.name].tensor.is_floating_point():
                buffers[o.name].tensor.fill_(_UNSAMPLED)
        return buffers[o.name].tensor

    def _scratch_bytes(self, scenario: Scenario) -> int:
        """What the plan of the step has for all buffers: enough for scratch."""
        if self.where.promises.by_plan:
            return self.use.workspace_bytes
        return self.built.plan(scenario.phase, scenario.tokens).workspace_bytes

    def _bind(self, buffers: dict[str, Buffer], logit_rows: int) -> None:
        """What every step checks counts against; cache and last_sampled are also used."""
        import torch

        vocab, device = self.built.manifest["model"]["vocab"], self.where.device
        self.library.bind("cache", buffers["pool"].tensor)
        self.library.bind("last_sampled", buffers["last_sampled"].tensor)
        self.library.bind("logits", torch.empty(logit_rows, vocab, device=device))
        self.library.bind("sampled", torch.empty(logit_rows, dtype=torch.int32, device=device))
        if state_bytes := self.built.manifest["cache"].get("state_bytes"):
            rows = self.built.manifest["args"]["max_rows"] + 1
            states = torch.empty(rows * state_bytes + 64, dtype=torch.uint8, device=device)
            start = -states.data_ptr() % 64
            states = states[start : start + rows * state_bytes].view(rows, -1)
            self.library.bind("states", states)
        if self.where.promises.by_plan:
            buffers["workspace"] = self.where.empty((self.use.workspace_bytes,), "uint8")
            self.library.bind("workspace", buffers["workspace"].tensor)
            zeros = torch.zeros(max(1, self.built.manifest["counters"]), dtype=torch.int32)
            buffers["counters"] = self.where.copy(zeros)
            self.library.bind("counters", buffers["counters"].tensor)
