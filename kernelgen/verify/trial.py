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
from kernelgen.verify.built import Built, BuiltKernel, Operand
from kernelgen.verify.compare import different
from kernelgen.verify.guarded import Guarded
from kernelgen.verify.library import KernelLibrary
from kernelgen.verify.operands import Given, cache_place, random_operands, random_weights
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
    """Tries one kernel of a build for one layer."""

    def __init__(
        self, built: Built, kernel: BuiltKernel, layer: int | None, library: KernelLibrary
    ) -> None:
        self.built, self.kernel, self.library = built, kernel, library
        self.place = None if layer is None else cache_place(built, kernel, layer)
        self.weights = random_weights(built, kernel)

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
        return evaluate_bounded(block, outside, view), view

    def _meant(self, value: Value, given: Given, steps: Mapping[str, Any]) -> Any:
        if value.role is Role.STATE:
            assert given.cache is not None, _NO_LAYER
            keys, values = given.cache.keys, given.cache.values
            return DenseCache([k.double() for k in keys], [v.double() for v in values])
        if value.role is Role.STEP:
            return steps[value.name]
        if value.name in self.weights.meant:
            return self.weights.meant[value.name]
        return given.inputs[value.name].double()

    def run(self, given: Given, threads: int) -> Ran:
        """One run on guarded copies. ValueError and the like are the library's refusals."""
        import torch

        words = write_args(self.built.manifest["args"], given.scenario, given.tables, given.ids)
        inputs = {**given.inputs, "args": torch.from_numpy(words)}
        last_sampled = torch.from_numpy(given.ids.last_sampled)
        buffers = {name: Guarded.of(value) for name, value in inputs.items()}
        buffers["pool"] = Guarded.of(given.pool)
        buffers["last_sampled"] = Guarded.of(last_sampled)
        operands = [self._operand(o, given, buffers) for o in self.kernel.operands]
        self._bind(buffers, len(given.scenario.logit_tokens))
        self.library.set_threads(threads)
        self.library.run(self.kernel.name, given.scenario.phase, buffers["args"].tensor, operands)
        return Ran(
            outputs={o.name: buffers[o.name].tensor for o in self.kernel.outputs},
            pool=buffers["pool"].tensor,
            last_sampled=buffers["last_sampled"].tensor,
            damage=list(self._damage(inputs, buffers)),
        )

    def _damage(self, inputs: Mapping[str, Any], buffers: Mapping[str, Guarded]) -> Iterator[str]:
        for name, guarded in {**buffers, **self.weights.given}.items():
            if guarded.damage():
                yield f"{name}: {guarded.damage()} bytes around it were written"
        for name, kept in inputs.items():
            if different(buffers[name].tensor, kept):
                yield f"{name} was changed"

    def _operand(self, o: Operand, given: Given, buffers: dict[str, Guarded]) -> Any:
        """What the kernel is handed for one operand; its buffers are added to `buffers`."""
        scenario = given.scenario
        if o.role == "step":
            return self.library.step_value(o.name)
        if o.role == "cache":
            assert self.place is not None, _NO_LAYER
            return self.library.layer(self.built.layers.index(self.place.layer))
        if o.role == "weight":
            return self.weights.given[o.name].tensor
        if o.role == "scratch":
            size = self.built.workspace_bytes(scenario.phase, scenario.tokens)
            buffers[o.name] = Guarded((size,), "uint8")
        elif o.role == "output":
            shape = o.sizes(scenario.tokens, len(scenario.logit_tokens))
            buffers[o.name] = Guarded(shape, o.dtype)
            if not buffers[o.name].tensor.is_floating_point():
                buffers[o.name].tensor.fill_(_UNSAMPLED)
        return buffers[o.name].tensor

    def _bind(self, buffers: Mapping[str, Guarded], logit_rows: int) -> None:
        """What every step checks counts against; cache and last_sampled are also used."""
        import torch

        vocab = self.built.manifest["model"]["vocab"]
        self.library.bind("cache", buffers["pool"].tensor)
        self.library.bind("last_sampled", buffers["last_sampled"].tensor)
        self.library.bind("logits", torch.empty(logit_rows, vocab))
        self.library.bind("sampled", torch.empty(logit_rows, dtype=torch.int32))
