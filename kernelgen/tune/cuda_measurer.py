"""Owns measuring on a GPU: chains of equal launches in a graph, weights cold, clocks settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from kernelgen.core.errors import NoDeviceError, UnsupportedError
from kernelgen.ir.op import Trait
from kernelgen.tune.bundle import Candidate, Group, Launch, ModelFacts, StepFacts
from kernelgen.tune.bundle_file import BundleFile
from kernelgen.tune.clocks import Clocks
from kernelgen.tune.driver import Driver, Prepared
from kernelgen.tune.measurer import Canary, Machine, Pair, Sample
from kernelgen.tune.reference import Reference, references
from kernelgen.tune.stage import Scene, Stage
from kernelgen.tune.verdict import Verdict
from kernelgen.tune.whole_stage import WholeStep

_SETTLE_S = 1.5
_WARM_AFTER_S = 0.05
"""pause of the GPU after which its clocks are brought up again"""
_CHAIN_US = 800.0
_LEAST_LINKS, _MOST_LINKS = 4, 192
_COPY_BYTES = 512 << 20
_COPIES = 5
_SPARE_BYTES = 6 << 30
"""of the device's memory, for references and activations"""


@dataclass
class _Shown:
    """The group on the stage."""

    scene: Scene
    references: tuple[Reference, ...]
    elsewhere: tuple[tuple[Scene, tuple[Reference, ...]] | None, ...] = ()
    """the same at other contexts; None where there is no room"""
    modules: list[Any] = field(default_factory=list)
    prepared: dict[str, tuple[tuple[Launch, Prepared], ...]] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether the kernel stores cache entries."""
        return any(n.op.has(Trait.STATE_WRITE) for n in self.scene.block.nodes)

    def checks(self) -> list[tuple[Scene, Reference]]:
        """Every way of asking, at every context."""
        elsewhere = [(there[0], r) for there in self.elsewhere if there for r in there[1]]
        return [(self.scene, r) for r in self.references] + elsewhere


class CudaMeasurer:
    """Measures the candidates of a bundle on the current GPU."""

    def __init__(self, file: BundleFile, device: str = "cuda") -> None:
        import torch

        self.file, self.device = file, device
        facts = file.bundle.device
        if not torch.cuda.is_available():
            raise NoDeviceError(f"measuring for {facts.target} needs its GPU; torch finds none")
        torch.zeros(1, device=device)
        major, minor = torch.cuda.get_device_capability()
        if major * 10 + minor != facts.sm:
            name = torch.cuda.get_device_name()
            raise UnsupportedError(
                f"the bundle is for sm_{facts.sm}, this is sm_{major * 10 + minor} ({name})"
            )
        name = torch.cuda.get_device_name()
        if facts.driver_names and name not in facts.driver_names:
            raise UnsupportedError(
                f"the bundle is for {' or '.join(facts.driver_names)}, this is {name}",
                hint=f"emit for this device: --target {facts.sm_name}:DEVICE",
            )
        torch.backends.cuda.matmul.allow_tf32 = False
        self.cuda = Driver()
        self.stage = Stage(facts, device, self.cuda.describe)
        self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.clocks = Clocks(_bus_id())
        self.shown: _Shown | None = None
        self.inside: WholeStep | None = None
        self.captured: dict[tuple[object, ...], Any] = {}
        self._matrix: Any = None
        self._copy: tuple[Any, Any] | None = None
        self._busy = 0.0

    def use(self, file: BundleFile) -> None:
        """Another bundle for the same device; the stage stays as it is."""
        self.file = file

    def settle(self) -> Machine:
        """Products until the clocks are up, then copies."""
        import torch

        self._products(_SETTLE_S)
        seen = [self.canary() for _ in range(8)]
        best = max(seen, key=lambda c: c.gb_s)
        return Machine(
            device=torch.cuda.get_device_name(),
            driver=self.clocks.driver() or f"CUDA {self.cuda.version()}",
            torch=torch.__version__,
            canary=best,
        )

    def canary(self) -> Canary:
        """The median of a few large copies: bytes read plus bytes written."""
        import torch

        self._keep_warm()
        if self._copy is None:
            one = torch.ones(_COPY_BYTES // 4, dtype=torch.float32, device=self.device)
            self._copy = (one, torch.empty_like(one))
        source, target = self._copy
        times = self._timed([lambda: target.copy_(source)], _COPIES)
        rate = 2 * _COPY_BYTES / (sorted(times)[len(times) // 2] * 1e3)
        return Canary(round(rate, 1), *self.clocks.now())

    def open(self, group: Group) -> None:
        """Allocates, fills, and computes the reference."""
        self._show(group)

    def coarse(self, group: Group, candidate: Candidate) -> Sample:
        """Numbers of the first copy in a step of its own, then one replay of the chain."""
        shown = self._show(group)
        verdict = self._check(shown, candidate)
        if verdict.share == float("inf"):
            return Sample((), 1e9, verdict.text)
        us = self._chain(shown, shown.scene, candidate, 1)
        note = verdict.text if verdict.share > 1 else ""
        return Sample(us, verdict.share, note, self._elsewhere(shown, candidate, 1))

    def fine(self, group: Group, candidate: Candidate, samples: int) -> Sample:
        """Replays of one chain, one after the other."""
        shown = self._show(group)
        us = self._chain(shown, shown.scene, candidate, samples)
        return Sample(us, 0.0, "", self._elsewhere(shown, candidate, samples))

    def whole(
        self, step: StepFacts, base: Mapping[str, str], trial: Mapping[str, str], samples: int
    ) -> Pair:
        """Graphs of both, replayed by turns: what drifts meets both alike."""
        import torch

        made = self._whole_step(step)
        graphs = [self._whole_graph(made, choices) for choices in (base, trial)]
        off = self._apart(made, graphs)
        self._keep_warm()
        with torch.cuda.stream(self.stream):
            for graph in graphs:
                graph.replay()
            times = self._timed([g.replay for g in graphs] * samples, 1)
        return Pair(_us(times[::2]), _us(times[1::2]), off)

    def _whole_step(self, step: StepFacts) -> WholeStep:
        """The step's buffers, made when it comes on; groups make room for it."""
        import torch

        if self.inside is None or self.inside.step.id != step.id:
            self._put_away()
            self.inside = None
            model = self.file.bundle.model[step.model]
            self.inside = WholeStep.of(
                self.stage, step, self.file.bundle.group, model, self._loaded
            )
            torch.cuda.synchronize()
        return self.inside

    def _loaded(self, launch: Launch, carve_out: int) -> Prepared:
        code = self.file.code(launch.code)
        _, function = self.cuda.load(code, launch.symbol, launch.shared_bytes, carve_out)
        return Prepared(self.cuda, function, launch)

    def _whole_graph(self, made: WholeStep, choices: Mapping[str, str]) -> Any:
        """The captured step; that of the base is kept for the next trial."""
        key = (made.step.id, tuple(sorted(choices.items())))
        if key not in self.captured:
            if len(self.captured) > 2:
                self.captured.pop(next(iter(self.captured)))
            self.captured[key] = self._captured(lambda stream: made.launch(choices, stream))
        return self.captured[key]

    def _apart(self, made: WholeStep, graphs: Sequence[Any]) -> float:
        """How far the logits of two graphs lie apart, as a share of their size."""
        import torch

        found = []
        made.keep_logits(True)
        for graph in graphs:
            made.logits.fill_(float("nan"))
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
            found.append(made.logits[: made.step.extents.rows].double())
        made.keep_logits(False)
        apart = float((found[0] - found[1]).norm() / found[0].norm().clamp(min=1e-30))
        return apart if isfinite(apart) else 1e9

    def _captured(self, work: Callable[[int], None]) -> Any:
        """A graph of what the work launches on the stream that it is given."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work(self.stream.cuda_stream)
            finally:
                graph.capture_end()
        return graph

    def _elsewhere(
        self, shown: _Shown, candidate: Candidate, samples: int
    ) -> tuple[float | None, ...]:
        """The median at each other context."""
        found: list[float | None] = []
        for there in shown.elsewhere:
            us = sorted(self._chain(shown, there[0], candidate, samples)) if there else [None]
            found.append(us[len(us) // 2])
        return tuple(found)

    def _show(self, group: Group) -> _Shown:
        """The group's operands and right answers, made when it comes on."""
        import torch

        if self.shown is None or self.shown.scene.group.id != group.id:
            self._put_away()
            model = self.file.bundle.model[group.model]
            there = self._places(group, model)
            scene = Scene.of(self.stage, group, model)
            elsewhere = tuple(
                None if place is None else self._there(group, model, context, place)
                for context, place in zip(group.elsewhere, there, strict=True)
            )
            self.shown = _Shown(scene, references(scene), elsewhere)
            torch.cuda.synchronize()
        return self.shown

    def _put_away(self) -> None:
        """Nothing is shown any more, and its code is gone."""
        import torch

        if self.shown is not None:
            torch.cuda.synchronize()
            for module in self.shown.modules:
                self.cuda.unload(module)
        self.shown = None

    def _places(self, group: Group, model: ModelFacts) -> tuple[int | None, ...]:
        """First pages of the other contexts; None where a context does not fit beside the others.
        The pool is made for all at once, since none may move later.
        """
        pages = 1 + Scene.pages_needed(self.stage, group, model)
        room = self.stage.pool_bytes + self._free() - _SPARE_BYTES
        found: list[int | None] = []
        for context in group.elsewhere:
            needed = Scene.pages_needed(self.stage, _at(group, context), model)
            fits = (pages + needed) * model.page_bytes <= room
            found.append(pages if fits else None)
            pages += needed * fits
        if any(found):
            self.stage.pool(model, pages, group.layers[0])
        return tuple(found)

    def _there(
        self, group: Group, model: ModelFacts, context: int, first_page: int
    ) -> tuple[Scene, tuple[Reference, ...]]:
        scene = Scene.of(self.stage, _at(group, context), model, first_page)
        return scene, references(scene)

    def _free(self) -> int:
        """Bytes that this process may still allocate."""
        import torch

        free = int(torch.cuda.mem_get_info()[0])
        return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def _prepare(self, shown: _Shown, candidate: Candidate) -> tuple[tuple[Launch, Prepared], ...]:
        if candidate.id not in shown.prepared:
            found = []
            for launch in candidate.launches:
                code = self.file.code(launch.code)
                module, function = self.cuda.load(code, launch.symbol, launch.shared_bytes)
                shown.modules.append(module)
                found.append((launch, Prepared(self.cuda, function, launch)))
            shown.prepared[candidate.id] = tuple(found)
        return shown.prepared[candidate.id]

    def _run_once(
        self, shown: _Shown, candidate: Candidate, scene: Scene, reference: Reference
    ) -> None:
        """The first copy in a step of its own."""
        import torch

        with torch.cuda.stream(self.stream):
            self.stream.wait_stream(torch.cuda.default_stream())
            for launch, prepared in self._prepare(shown, candidate):
                given = scene.first(launch.arguments, reference.args)
                prepared.run(given, self.stream.cuda_stream, overlap=False)
        torch.cuda.synchronize()

    def _check(self, shown: _Shown, candidate: Candidate) -> Verdict:
        """The worst of all ways of asking; counters have to be zero again."""
        worst = Verdict(0.0)
        for scene, reference in shown.checks():
            reference.poison()
            self._run_once(shown, candidate, scene, reference)
            worst = max(worst, reference.judge(), key=lambda v: v.share)
            if int(scene.counters.count_nonzero()):
                scene.counters.zero_()
                worst = Verdict(float("inf"), "counters are not zero behind the launch")
        if worst.share > 1 and shown.writes:
            self._again(shown)
        return worst

    @staticmethod
    def _again(shown: _Shown) -> None:
        """Right answers once more: a wrong kernel may have spoilt the cache that they rest on."""
        shown.references = references(shown.scene)
        shown.elsewhere = tuple(t and (t[0], references(t[0])) for t in shown.elsewhere)

    def _chain(
        self, shown: _Shown, scene: Scene, candidate: Candidate, samples: int
    ) -> tuple[float, ...]:
        """µs of one link: a graph of links, each on another copy, replayed."""
        import torch

        launches = self._prepare(shown, candidate)
        planned = shown.scene.group.extents.context
        longer = max(1.0, scene.group.extents.context / planned)
        expected = max(candidate.modelled_us * longer, 2.0)
        count = int(min(_MOST_LINKS, max(_LEAST_LINKS, _CHAIN_US / expected)))
        count = max(count, scene.cold)
        given = [scene.links(launch.arguments) for launch, _ in launches]

        def chain(stream: int) -> None:
            for link in range(count):
                for (_, prepared), links in zip(launches, given, strict=True):
                    prepared.run(links[link % len(links)], stream, overlap=True)

        graph = self._captured(chain)
        self._keep_warm()
        with torch.cuda.stream(self.stream):
            graph.replay()
            times = self._timed([graph.replay], samples)
        return tuple(round(us / count, 4) for us in times)

    def _timed(self, works: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
        """µs of each call on the current stream, queued without a pause between them."""
        import torch

        stream = torch.cuda.current_stream()
        event: Any = torch.cuda.Event
        todo = [*works] * rounds
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in todo]
        for work, (before, after) in zip(todo, pairs, strict=True):
            before.record(stream)
            work()
            after.record(stream)
        stream.synchronize()
        self._busy = time.monotonic()
        return [before.elapsed_time(after) * 1e3 for before, after in pairs]

    def _keep_warm(self) -> None:
        """A few milliseconds of products where the GPU has been idle."""
        if time.monotonic() - self._busy > _WARM_AFTER_S:
            self._products(0.01)

    def _products(self, seconds: float) -> None:
        import torch

        if self._matrix is None:
            self._matrix = torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(3):
                torch.matmul(self._matrix, self._matrix)
            torch.cuda.synchronize()
        self._busy = time.monotonic()


def _us(times: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(us, 3) for us in times)


def _at(group: Group, context: int) -> Group:
    """The group at another context."""
    return replace(group, extents=replace(group.extents, context=context), elsewhere=())


def _bus_id() -> str:
    """Where the current GPU is plugged in, as the management library spells it; or nothing."""
    import torch

    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    parts = [getattr(seen, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
    if -1 in parts:
        return ""
    return "{:08x}:{:02x}:{:02x}.0".format(*parts)
