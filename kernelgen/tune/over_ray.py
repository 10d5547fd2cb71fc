"""Owns sweeps over the GPUs of a Ray cluster: one actor a GPU, one group a task, Ray schedules."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelgen.core.errors import KernelgenError, NoDeviceError, UnsupportedError
from kernelgen.tune.bundle import Group
from kernelgen.tune.bundle_file import BundleFile, write_bundle
from kernelgen.tune.crew import Crew
from kernelgen.tune.journal import Journal, Notes, finished
from kernelgen.tune.sweep import Outcome, Part, Progress, Settings, Sweep, in_order, outcome

_FAKE_ACTORS = 2
_TRIES = 2
"""actors that a group may take along before it is left for another run"""


class Hand:
    """Measures groups on one GPU, with a child of its own that may crash or hang."""

    def __init__(
        self, data: bytes, kind: str, time_limit_s: float, settings: Settings, begin: Any
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kernelgen-tune-")
        folder = Path(self._folder.name)
        path = folder / "bundle.zip"
        path.write_bytes(data)
        self.part = Part(path, BundleFile(path).bundle)
        self.crew = Crew(kind, folder, time_limit_s)
        self.crew.use(path)
        self.settings, self.begin = settings, begin

    def measure(self, group: str, known: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The group's lines for the journal. `known`: candidates that were bad in earlier runs.

        A refusal of the device comes back as a line of its own: exceptions would lose their class.
        """
        book = Notes([self.begin, *known])
        sweep = Sweep(self.crew, book, self.settings)
        try:
            sweep.group(self.part.bundle, next(g for g in _groups(self.part) if g.id == group))
        except KernelgenError as error:
            return [{"kind": "refused", "text": str(error)}]
        return book.lines[1 + len(known) :]


def measure_over_ray(
    address: str,
    part: Part,
    journal: Journal,
    kind: str,
    time_limit_s: float,
    settings: Settings,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Measures what the journal does not hold yet on all GPUs of the cluster at `address`
    (`auto`, `local`, `host:port` or `ray://…`).

    `UnsupportedError` where Ray is not installed, `NoDeviceError` where nobody answers at the
    address or the cluster has no GPU. Groups whose node is lost are left for another run.
    """
    return _Cluster(address, part, journal, kind, time_limit_s, settings, tell).run()


class _Cluster:
    def __init__(
        self,
        address: str,
        part: Part,
        journal: Journal,
        kind: str,
        time_limit_s: float,
        settings: Settings,
        tell: Callable[[Progress], None],
    ) -> None:
        self.part, self.journal, self.settings, self.tell = part, journal, settings, tell
        self.kind, self.time_limit_s = kind, time_limit_s
        self.ray = _connected(address)
        done = finished(journal)
        self.todo = [g for g in in_order(_groups(part)) if done.get(g.id) != g.code]
        self.resumed = len(_groups(part)) - len(self.todo)
        self.measured = 0
        self.tries: dict[str, int] = {}

    def run(self) -> Outcome:
        """One group on each actor at a time; the next one goes to whoever is free."""
        self.began = time.monotonic()
        idle = self._actors()
        busy: dict[Any, tuple[Any, Group]] = {}
        todo = list(self.todo)
        while busy or (todo and not self._over()):
            while idle and todo and not self._over():
                actor, group = idle.pop(), todo.pop(0)
                busy[actor.measure.remote(group.id, self._known(group))] = (actor, group)
            if not busy:
                break
            ready, _ = self.ray.wait(list(busy), num_returns=1)
            actor, group = busy.pop(ready[0])
            if self._finished(ready[0], group):
                idle.append(actor)
            else:
                self.tries[group.id] = self.tries.get(group.id, 0) + 1
                todo += [group] if self.tries[group.id] < _TRIES else []
                idle.append(actor)  # Ray has started it again, or will tell so once more
        return outcome(
            self.journal,
            measured=self.measured,
            resumed=self.resumed,
            left=len(self.todo) - self.measured,
            seconds=round(time.monotonic() - self.began, 1),
            machine=None,
        )

    def _over(self) -> bool:
        minutes = self.settings.minutes
        return minutes is not None and time.monotonic() - self.began >= 60 * minutes

    def _known(self, group: Group) -> list[Mapping[str, Any]]:
        return [line for line in self.journal.of("coarse", group=group.id) if line["bad"]]

    def _actors(self) -> list[Any]:
        gpus = int(self.ray.cluster_resources().get("GPU", 0))
        fake = self.kind != "cuda"
        if not gpus and not fake:
            raise NoDeviceError("the Ray cluster has no GPU", where="--ray")
        with (
            tempfile.TemporaryDirectory() as folder
        ):  # a bundle may be a folder: nodes get one file
            data = self.ray.put(_packed(self.part, Path(folder)))
        begin = next(self.journal.of("begin"))
        hand = self.ray.remote(num_gpus=0 if fake else 1, max_restarts=-1)(Hand)
        count = min(len(self.todo), _FAKE_ACTORS if fake else gpus)
        return [
            hand.remote(data, self.kind, self.time_limit_s, self.settings, begin)
            for _ in range(count)
        ]

    def _finished(self, task: Any, group: Group) -> bool:
        """Writes a group's lines down; False where its actor is gone."""
        try:
            lines = self.ray.get(task)
        except self.ray.exceptions.RayError:
            return False
        for line in lines:
            if line["kind"] == "refused":
                raise NoDeviceError(line["text"], where="--ray")
            fields = {k: v for k, v in line.items() if k != "kind"}
            self.journal.add(line["kind"], durable=line["kind"] == "group", **fields)
        self.measured += 1
        self._told(group, lines[-1])
        return True

    def _told(self, group: Group, line: Mapping[str, Any]) -> None:
        row = line.get("row") or {}
        self.tell(
            Progress(
                done=self.resumed + self.measured,
                total=len(_groups(self.part)),
                kernel=group.kernel,
                bucket=group.bucket,
                us=row.get("us"),
                before_us=line.get("in_use_us"),
                note=str(line.get("flag") or ""),
                finished=True,
                seconds=time.monotonic() - self.began,
            )
        )


def _groups(part: Part) -> tuple[Group, ...]:
    return part.bundle.groups


def _packed(part: Part, folder: Path) -> bytes:
    if part.path.is_file():
        return part.path.read_bytes()
    file = BundleFile(part.path)
    packed = folder / "bundle.zip"
    write_bundle(packed, file.bundle, {code: file.code(code) for code in file.bundle.codes})
    return packed.read_bytes()


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise UnsupportedError(
            "the Python package ray is not installed", hint="pip install 'kernelgen[ray]'"
        ) from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError) as error:
            text = " ".join(str(error).split())[:200]
            raise NoDeviceError(f"no Ray cluster at {address}: {text}", where="--ray") from error
    return ray
