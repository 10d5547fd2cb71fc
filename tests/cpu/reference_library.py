"""A stand-in for a GPU's step library: kernels computed by the references of their ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verify_build import Small

from kernelgen.codegen.cuda.host import workspace_bytes
from kernelgen.codegen.cuda.program import cuda_program
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.manifest import (
    CheckpointTensor,
    Identity,
    Library,
    TargetBuild,
    gpu_kernel_list,
    manifest,
)
from kernelgen.core.files import write_tree
from kernelgen.core.jsonio import dumps_readable
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Role
from kernelgen.ops.step import DenseCache, StepView
from kernelgen.planner.planner import Planner
from kernelgen.verify.built import Built, BuiltKernel
from kernelgen.verify.cache_pool import CachePlace
from kernelgen.verify.evaluate import evaluate_block
from kernelgen.verify.gpu import GPU, Zoned
from kernelgen.verify.operands import cache_place
from kernelgen.verify.place import Promises

SIZES = (("decode", 1), ("decode", 8), ("mixed", 128))
Spoil = Callable[[str, dict[str, Any]], None]
"""changes what a kernel has left: its name, buffers by name"""


class HostGpu:
    """The promises of a GPU on the memory of the host."""

    device = "cpu"
    promises: Promises = GPU

    def empty(self, shape: Sequence[int], dtype: str) -> Zoned:
        return Zoned(shape, dtype, self.device)

    def copy(self, tensor: Any) -> Zoned:
        made = self.empty(tensor.shape, str(tensor.dtype).removeprefix("torch."))
        made.tensor.copy_(tensor)
        return made

    def wait(self) -> None:
        pass

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


def gpu_build(folder: Path, subject: Small, dtype: str) -> Path:
    """A build for a GPU as `build` writes it, without machine code."""
    device = parse_target("sm_90:h200")
    graph = subject.graph(dtype)
    planner = Planner(graph, device, device.target, catalogue(device), True)
    plans = tuple(planner.plan(phase, size) for phase, size in SIZES)
    program = cuda_program(plans, device.sm, subject.spec.vocab, subject.spec.max_positions)
    target = TargetBuild(
        target=device.target,
        libraries=[Library("sm_90", "lib/cuda_sm_90.so", False)],
        weights=program.weights,
        cache=program.cache,
        args=program.args,
        plans=plans,
        workspace_bytes=[workspace_bytes(plan, program.args) for plan in plans],
        sources={},
        device_names=device.driver_names,
        rules=program.rules,
        counters=max(plan.counters for plan in plans),
    )
    tensors = [
        CheckpointTensor(t.name, t.shape, t.parameter, t.take, t.expert)
        for t in subject.architecture.checkpoint(subject.spec, graph)
    ]
    identity = Identity("small", "0", "kernelgen test", dtype, {})
    about = manifest(identity, subject.spec, [target], tensors, [])
    files = {
        "manifest.json": dumps_readable(about).encode(),
        "sm_90/kernels.json": dumps_readable(gpu_kernel_list(program)).encode(),
    }
    for p in plans:
        files[f"plans/sm_90_{p.phase}_{p.size}.json"] = dumps_readable(p.to_json()).encode()
    write_tree(folder, files)
    return folder


class ReferenceLibrary:
    """What `KernelLibrary` is to a checker. `spoil` changes what a kernel leaves behind."""

    def __init__(self, built: Built, spoil: Spoil = lambda name, buffers: None) -> None:
        self.built, self.spoil = built, spoil
        self.kernels = {k.name: k for k in built.kernels}
        self.bound: dict[str, Any] = {}
        self.plans: list[int] = []

    def bind(self, name: str, tensor: Any) -> None:
        self.bound[name] = tensor

    def set_threads(self, count: int) -> None:
        assert count == 0

    @staticmethod
    def step_value(name: str) -> int:
        return ("token_ids", "positions", "rows", "logit_tokens", "sampling").index(name)

    @staticmethod
    def layer(number: int) -> int:
        return 1000 + number

    def prepare(self, plan: int, args: Any) -> None:
        step = _Step(self.built, args, self.bound["last_sampled"])
        size = next(p.size for p in self.built.plans if p.number == plan)
        places = self._places(size)
        for place, values, rest in zip(
            places, (step.ids, step.positions, step.rows), (-1, 0, -1), strict=True
        ):
            place[:] = rest
            place[: len(values)] = torch.tensor(values, dtype=torch.int32)
        self.spoil("prepare", {"token_ids": places[0], "positions": places[1], "rows": places[2]})

    def _places(self, size: int) -> list[Any]:
        each = -(-4 * self.built.manifest["args"]["max_tokens"] // 256) * 256
        words = self.bound["workspace"].view(torch.int32)
        return [words[i * each // 4 : i * each // 4 + size] for i in range(3)]

    def run(self, name: str, plan: int, args: Any, operands: Sequence[Any]) -> None:
        """One kernel: rows behind those of the step are not looked at, nor written."""
        self.plans.append(plan)
        kernel = self.kernels[name]
        step = _Step(self.built, args, self.bound["last_sampled"])
        given = dict(zip((o.name for o in kernel.operands), operands, strict=True))
        assert all(given[o.name] is None for o in kernel.operands if o.role == "counters")
        place, cache = self._cache(kernel, given, step)
        outside: dict[str, Any] = {}
        for value in kernel.block.values:
            if value.name in kernel.block.producer:
                continue
            if value.role is Role.STATE:
                outside[value.name] = cache
            elif value.role is Role.STEP:
                outside[value.name] = step.values()[value.name]
            else:
                tensor = given[value.name].double()
                leading = next(o.leading for o in kernel.operands if o.name == value.name)
                used = {"T": len(step.ids), "B": len(step.asked), "": len(tensor)}[leading]
                outside[value.name] = tensor[:used]
        found = evaluate_block(kernel.block, outside, step.view(), rounded=True)
        for operand in kernel.outputs:
            result = found[operand.name].to(given[operand.name].dtype)
            if result.dtype == torch.int32:
                result = self._chosen(step, result)
            given[operand.name][: len(result)] = result
        if place is not None and kernel.written_state is not None:
            self._store(step, place, found[kernel.written_state])
        tensors = {key: value for key, value in given.items() if value is not None}
        self.spoil(name, {**self.bound, **tensors, "args": args})

    def _chosen(self, step: _Step, ids: Any) -> Any:
        for b, row in enumerate(step.owners):
            if row < 0:
                ids[b] = -1
            else:
                self.bound["last_sampled"][step.slots[row]] = ids[b]
        return ids

    def _cache(
        self, kernel: BuiltKernel, given: Mapping[str, Any], step: _Step
    ) -> tuple[CachePlace | None, DenseCache | None]:
        number = next((v for v in given.values() if isinstance(v, int) and v >= 1000), None)
        if number is None:
            return None, None
        layer = self.built.layers[number - 1000]
        place = cache_place(self.built, kernel, layer, HostGpu())
        pool, table = self.bound["cache"], step.table(place.group.name)
        sides: tuple[list[Any], list[Any]] = ([], [])
        for row, length in enumerate(step.lengths):
            pages, at = place.where(table, row, range(length))
            for side, what in zip(sides, place.part.read(pool, pages, at), strict=True):
                side.append(what.double().nan_to_num())
        return place, DenseCache(*sides)

    def _store(self, step: _Step, place: CachePlace, cache: DenseCache) -> None:
        table = step.table(place.group.name)
        for row, length in enumerate(step.lengths):
            new = range(length - step.counts[row], length)
            if step.slots[row] >= 0 and len(new):
                pages, at = place.where(table, row, new)
                cut = slice(new.start, new.stop)
                keys, values = cache.keys[row][cut], cache.values[row][cut]
                place.part.write(self.bound["cache"], pages, at, keys, values)


class _Step:
    """The arguments read back."""

    def __init__(self, built: Built, args: Any, last_sampled: Any) -> None:
        words = args.numpy()
        self.fields: dict[str, Any] = {}
        for field in built.manifest["args"]["fields"]:
            count = int(np.prod(field["shape"]))
            span = words[field["offset"] : field["offset"] + count].reshape(field["shape"])
            self.fields[field["name"]] = span.view(np.float32) if field["bits"] != "int32" else span
        tokens, requests, asked, _ = self.fields["counts"]
        starts = self.fields["row_query_start"][: requests + 1]
        self.counts = np.diff(starts).tolist()
        self.slots = self.fields["row_slot"][:requests].tolist()
        self.lengths = self.fields["row_seq_len"][:requests].tolist()
        self.asked = self.fields["logit_token"][:asked].tolist()
        self.owners = self.fields["logit_row"][:asked].tolist()
        self.ids, self.positions, self.rows = [], [], []
        for row, (slot, count) in enumerate(zip(self.slots, self.counts, strict=True)):
            for n in range(count):
                given = int(self.fields["token_ids"][len(self.ids)])
                newest = int(last_sampled[slot]) if slot >= 0 else -1
                self.ids.append(-1 if slot < 0 else newest if given < 0 else given)
                self.positions.append(0 if slot < 0 else self.lengths[row] - count + n)
                self.rows.append(-1 if slot < 0 else row)
        assert len(self.ids) == tokens

    def table(self, group: str) -> Any:
        return self.fields[f"block_table.{group}"][: len(self.slots)]

    def values(self) -> dict[str, Any]:
        lists = {
            "token_ids": self.ids,
            "positions": self.positions,
            "rows": self.rows,
            "logit_tokens": self.asked,
            "sampling": list(range(len(self.asked))),
        }
        return {name: torch.tensor(items, dtype=torch.int64) for name, items in lists.items()}

    def view(self) -> StepView:
        rows = [self.rows[t] for t in self.asked]
        words = self.fields["seed"].view(np.uint32).astype(np.int64)
        seeds = [int(low + (high << 32)) for low, high in words]
        return StepView(
            positions=self.values()["positions"],
            request=self.values()["rows"],
            temperature=[float(self.fields["temperature"][r]) for r in rows],
            top_k=[int(self.fields["top_k"][r]) for r in rows],
            top_p=[float(self.fields["top_p"][r]) for r in rows],
            seed=[seeds[r] for r in rows],
            position=[self.positions[t] + 1 for t in self.asked],
        )
