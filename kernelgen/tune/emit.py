"""Owns emitting: a model's groups planned, compiled without a GPU, and put into bundles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelgen import __version__
from kernelgen.codegen.cuda.launches import GpuKernel
from kernelgen.codegen.step_args import ArgsLayout, args_layout
from kernelgen.codegen.triton.kernels import StepLayout
from kernelgen.codegen.triton.prepare import prepare_kernel
from kernelgen.compile.cpp import BuildStep
from kernelgen.compile.store import Store
from kernelgen.compile.triton_toolchain import find_triton
from kernelgen.core.digest import digest_file, digest_json
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph
from kernelgen.planner.caches import cache_schema
from kernelgen.planner.plan import Plan
from kernelgen.planner.planner import MAX_ROWS
from kernelgen.tables import Bucket, Tables
from kernelgen.tune.bundle import Bundle, group_id
from kernelgen.tune.collecting import group_of, launches_of
from kernelgen.tune.compiling import Compiled, compile_candidates
from kernelgen.tune.facts import device_facts, model_facts
from kernelgen.tune.groups import ModelGroups, Planned
from kernelgen.tune.journal import Notes, finished
from kernelgen.tune.whole_emit import in_steps, plans_of, step_facts

_FIRST_PART, _PART = 24, 96
"""units of the part that measuring starts with, and of the others"""


@dataclass(frozen=True)
class Wish:
    """What a bundle is made for."""

    graph: Graph
    vocabulary: int
    max_positions: int
    device: Device
    tables: Tables
    buckets: tuple[Bucket, ...]
    largest_mixed: int
    """tokens of the largest plan that builds have: kernels know where argument fields lie"""
    effort: str = "normal"
    factor: float = 1.15
    families: frozenset[str] = frozenset()
    missing: bool = False
    """only kernels at sizes without a row that counts"""
    whole_step: bool = False
    """only the plan's kernels, which are tried in their whole step too"""


@dataclass(frozen=True)
class Emitted:
    """A bundle and the machine code that it names."""

    bundle: Bundle
    codes: Mapping[str, bytes]


@dataclass(frozen=True)
class Emitter:
    """All groups of a wish, those with most to gain first, before anything is compiled."""

    wish: Wish
    args: ArgsLayout
    planned: tuple[Planned, ...]
    digest: str
    plans: Mapping[Bucket, Plan] = field(default_factory=dict)
    """of the whole steps that candidates are tried in"""

    @staticmethod
    def of(wish: Wish) -> Emitter:
        """Plans every size; `UnsupportedError` where Triton is missing."""
        tools = find_triton()
        cache = cache_schema(wish.graph.caches)
        args = args_layout(cache, wish.largest_mixed, MAX_ROWS, wish.max_positions)
        layout = StepLayout(cache, args)
        planner = ModelGroups(
            wish.graph, wish.device, layout, wish.tables, wish.effort, wish.factor,
            frozenset() if wish.whole_step else wish.families, wish.missing,
        )  # fmt: skip
        planned = [group for bucket in wish.buckets for group in planner.at(bucket)]
        plans: Mapping[Bucket, Plan] = {}
        if wish.whole_step:
            plans = plans_of(wish.graph, wish.device, wish.tables, wish.buckets)
            planned = list(in_steps(planned, plans, wish.families))
        planned.sort(key=lambda p: (-p.weight, p.key))
        facts = model_facts(wish.graph, cache, args, wish.vocabulary)
        # Tables are no part of it: a sweep goes on after its first rows have been merged.
        place = [device_facts(wish.device), facts, tools.identity, wish.effort, wish.factor]
        digest = digest_json([*place, "whole step"] if wish.whole_step else place)
        return Emitter(wish, args, tuple(planned), digest, plans)

    def name(self, planned: Planned) -> str:
        """The id of its group."""
        return group_id(*planned.key, self.wish.graph.name)

    def done(self, journal: Notes) -> frozenset[str]:
        """Ids of groups that need not be measured again."""
        found = finished(journal)
        return frozenset(name for p in self.planned if found.get(name := self.name(p)) == p.code)

    def parts(self, done: Collection[str] = ()) -> Iterator[Sequence[Planned]]:
        """Groups in order but for those that are done, so many at once as have enough to compile
        for all cores.
        """
        part: list[Planned] = []
        most = _FIRST_PART
        for planned in self.planned:
            if self.name(planned) in done:
                continue
            part.append(planned)
            if sum(len(t.units) for p in part for t in p.tiles) >= most:
                yield part
                part, most = [], _PART
        if part:
            yield part

    def emitted(
        self,
        part: Sequence[Planned],
        store: Store,
        *,
        jobs: int | None = None,
        progress: Callable[[BuildStep], None] = lambda step: None,
    ) -> Emitted:
        """Compiles and collects; what spills or does not compile is told and left out.

        Raises what `compile_triton` raises where Triton itself is missing, or the disk is full.
        """
        wish = self.wish
        units = {unit.name: unit for p in part for tile in p.tiles for unit in tile.units}
        prepare = prepare_kernel(self.args, wish.vocabulary) if self.plans else GpuKernel(())
        units |= {one.unit.name: one.unit for one in prepare.passes}
        with store.session():
            made = compile_candidates(
                list(units.values()), sm=wish.device.sm, store=store, jobs=jobs, progress=progress
            )
            digests = {name: digest_file(kernel.cubin) for name, kernel in made.kernels.items()}
            codes = {digests[n]: kernel.cubin.read_bytes() for n, kernel in made.kernels.items()}
        cache = cache_schema(wish.graph.caches)
        facts = model_facts(wish.graph, cache, self.args, wish.vocabulary)
        groups = [group_of(p, facts.name, made, digests) for p in part]
        groups = [g for g in groups if g.candidates]
        steps = [
            step_facts(
                plan, bucket, part, launches_of(prepare, made, digests, plan.sizes), self.args,
                lambda key: group_id(*key, wish.graph.name),
            )
            for bucket, plan in self.plans.items()
        ]  # fmt: skip
        whole = {
            g.id for g in groups if any(dict(c.choice) == dict(g.before) for c in g.candidates)
        }
        bundle = Bundle(
            schema=1,
            generator=f"kernelgen {__version__}",
            wish=self.digest,
            effort=wish.effort,
            device=device_facts(wish.device),
            toolchain=_toolchain(made),
            models=(facts,),
            groups=tuple(groups),
            failed=dict(sorted(made.failed.items())),
            steps=tuple(s for s in steps if {use.group for use in s.uses} <= whole),
        )
        return Emitted(bundle, codes)


def _toolchain(made: Compiled) -> dict[str, str]:
    images = [kernel.image for kernel in made.kernels.values()]
    return {"triton": images[0].triton, "ptxas": images[0].assembler} if images else {}
