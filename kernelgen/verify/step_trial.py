"""Owns running whole steps of a library on random weights and a random cache, clean or poisoned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from kernelgen.verify.arguments import UNWRITTEN, Ids, Tables, block_tables, token_ids, write_args
from kernelgen.verify.built import Built, Use
from kernelgen.verify.compare import different
from kernelgen.verify.evaluate import table_tensor
from kernelgen.verify.library import KernelLibrary
from kernelgen.verify.place import Buffer, Place
from kernelgen.verify.scenario import Scenario
from kernelgen.verify.step_cache import step_pool, step_states, untouchable

_SEED = 17


@dataclass(frozen=True)
class Taken:
    """What a step left behind, on the CPU; `logits` and `sampled` of its logit rows."""

    logits: Any
    sampled: Any
    last_sampled: Any
    pool: Any
    states: Any
    """None where the model carries none"""
    damage: list[str]

    def choices_differ(self, other: Taken) -> int:
        """Ids that are not the same."""
        return different(self.sampled, other.sampled) + different(
            self.last_sampled, other.last_sampled
        )

    def differs(self, other: Taken) -> int:
        """Logits and ids whose bits are not the same."""
        return different(self.logits, other.logits) + self.choices_differ(other)

    def cache_differs(self, other: Taken) -> int:
        """Bytes of the cache and of states that are not the same."""
        count = different(self.pool, other.pool)
        return count + (0 if self.states is None else different(self.states, other.states))


class StepTrial:
    """One library with weights; scenarios are beginnings of `widest`."""

    def __init__(self, built: Built, library: KernelLibrary, where: Place) -> None:
        self.built, self.library, self.where = built, library, where
        self._kept = dict(_weights(built, where))
        for name, tensor in self._kept.items():
            library.bind(name, tensor)

    def content(self, widest: Scenario) -> Content:
        """Ids, pages and the cache of a scenario, drawn once."""
        rng = np.random.default_rng(_SEED)
        tables = block_tables(widest, self.built.groups, rng)
        ids = token_ids(widest, self.built.manifest["model"]["vocab"], rng)
        kinds = (False, True)
        pools = {p: step_pool(self.built, widest, tables, self.where, p) for p in kinds}
        states = {p: step_states(self.built, widest, p) for p in kinds}
        return Content(tables, ids, pools, states)

    def run(
        self,
        use: Use,
        scenario: Scenario,
        content: Content,
        *,
        poisoned: bool,
        recorded: bool = False,
        asked: bool = True,
    ) -> Taken:
        """One step of a plan.

        `poisoned`: whatever the step must not depend on is NaN or nonsense, else zeros. `recorded`:
        as a replay. `asked`: whether somebody reads the logits.
        """
        import torch

        given, meant = (z[: scenario.tokens] for z in (content.ids.given, content.ids.meant))
        ids = Ids(given, meant, content.ids.last_sampled)
        rows = len(scenario.requests)
        tables = Tables({n: t[:rows] for n, t in content.tables.entries.items()}, 0)
        unused = UNWRITTEN if poisoned else 0
        words = write_args(self.built.manifest["args"], scenario, tables, ids, unused=unused)
        if not asked:
            fields = {f["name"]: f["offset"] for f in self.built.manifest["args"]["fields"]}
            words[fields["counts"] + 3] = 1
        contents = {
            "args": torch.from_numpy(words),
            "cache": content.pools[poisoned],
            "last_sampled": torch.from_numpy(ids.last_sampled),
        }
        if (states := content.states[poisoned]) is not None:
            contents["states"] = states
        buffers = self._buffers(use, contents, poisoned)
        args = buffers["args"].tensor

        def step() -> None:
            self.library.step(use.number, args)

        if recorded:
            step()  # what it launches is loaded now and not while it is recorded
            self.where.wait()
            again = self.where.record(step)
            self._fill(buffers, contents, poisoned)
            again()
        else:
            step()
        self.where.wait()
        taken = self._taken(buffers, len(scenario.logit_tokens))
        if states is not None and taken.states is not None:
            kept = untouchable(scenario)
            if different(taken.states[kept], states[kept]):
                taken.damage.append("states: the null page or one of a padding row was written")
        return taken

    def _taken(self, buffers: Mapping[str, Buffer], count: int) -> Taken:
        damage = [
            f"{name}: {b.damage()} bytes around it were written"
            for name, b in buffers.items()
            if b.damage()
        ]
        if "counters" in buffers and bool(buffers["counters"].tensor.any()):
            damage.append("counters are not zero again")
        return Taken(
            logits=buffers["logits"].content[:count],
            sampled=buffers["sampled"].content[:count],
            last_sampled=buffers["last_sampled"].content,
            pool=buffers["cache"].content,
            states=buffers["states"].content if "states" in buffers else None,
            damage=damage,
        )

    def _buffers(self, use: Use, contents: Mapping[str, Any], poisoned: bool) -> dict[str, Buffer]:
        """Everything that is bound besides weights, and the arguments."""
        manifest, empty = self.built.manifest, self.where.empty
        buffers = {name: self.where.copy(tensor) for name, tensor in contents.items()}
        buffers["workspace"] = empty((use.workspace_bytes,), "uint8")
        buffers["logits"] = empty((use.logit_rows, manifest["model"]["vocab"]), "float32")
        buffers["sampled"] = empty((use.logit_rows,), "int32")
        if manifest["counters"]:
            buffers["counters"] = empty((manifest["counters"],), "int32")
        self._fill(buffers, contents, poisoned)
        for name, buffer in buffers.items():
            if name != "args":
                self.library.bind(name, buffer.tensor)
        return buffers

    def _fill(
        self, buffers: Mapping[str, Buffer], contents: Mapping[str, Any], poisoned: bool
    ) -> None:
        """Contents as before a step."""
        for name, buffer in buffers.items():
            if name in contents:
                buffer.tensor.copy_(contents[name])
            elif name == "counters" or not poisoned:
                buffer.tensor.zero_()
            elif buffer.tensor.is_floating_point():
                buffer.tensor.fill_(float("nan"))
            else:
                buffer.tensor.fill_(0xFF if name == "workspace" else -7)


@dataclass(frozen=True)
class Content:
    """What all steps of one scenario, and of its beginnings, work on."""

    tables: Tables
    ids: Ids
    pools: Mapping[bool, Any]
    """the cache: poisoned or not"""
    states: Mapping[bool, Any]
    """likewise what requests carry, None where they carry nothing"""


def _weights(built: Built, where: Place) -> Iterator[tuple[str, Any]]:
    """Random weights as they are bound; rotary tables are the model's own."""
    import torch

    made = torch.Generator(device=where.device).manual_seed(_SEED)
    for weight in built.manifest["weights"]:
        kind, shape = getattr(torch, weight["dtype"]), weight["shape"]
        if weight["name"] in built.tables:
            yield weight["name"], _aligned(table_tensor(built.tables[weight["name"]], kind), where)
            continue
        random = torch.randn(shape, generator=made, device=where.device)
        last = shape[-1] if len(shape) == 2 else prod(shape[1:])
        plain = random / last**0.5 if len(shape) > 1 else 0.75 + 0.5 * random
        yield weight["name"], _aligned(plain.to(kind), where)


def _aligned(tensor: Any, where: Place) -> Any:
    """The tensor on the device, at the start of an allocation."""
    import torch

    place = torch.empty(tensor.numel() + 256, dtype=tensor.dtype, device=where.device)
    start = -place.data_ptr() % 256 // tensor.element_size()
    found = place[start : start + tensor.numel()].view(tensor.shape)
    found.copy_(tensor)
    return found
