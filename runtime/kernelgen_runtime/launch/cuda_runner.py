"""Owns running steps on a GPU: args go up and ids come down while the next step is launched."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import cycle

import torch

from ..artifact.manifest import Manifest, Plan
from ..device.cuda import CudaDevice, is_out_of_memory, out_of_memory_text
from ..device.device import Accelerator, Event
from ..errors import DeviceMemoryError, LaunchError, shown
from .args import ArgsWriter, SlotSampling
from .details import Answer
from .graphs import DecodeGraphs
from .library import StepLibrary
from .plans import PlanTable
from .runner import Guidance, Logits, Waiter, allowed_words, make_buffers
from .upload import DeviceArgs

LESS_BESIDE = "free some of it, choose another GPU with --device cuda:N, or lower --max-num-seqs"


@dataclass
class Entry:
    """What one step in flight owns on the host, and how far it is.

    `sent`: its args are on the device; `done`: its ids are in `sampled`; `taken`: in `results` too.
    `answer` is what its results are, once they are taken.
    """

    args: ArgsWriter
    results: dict[str, torch.Tensor]
    sent: Event
    done: Event
    taken: Event
    answer: Waiter | None = None


class CudaRunner:
    """A `Runner` on one GPU. `warm_up`, `give_cache`, `capture`; steps may run after that.

    Steps run in order on one stream. Between two of them the args of the second go up on the same
    stream while the ids of the first go down on another: only then may the second overwrite
    `sampled`. An entry of the ring is written again when its copies are done, which is always so
    if the ring has one entry more than there are steps in flight.
    """

    def __init__(
        self,
        device: CudaDevice,
        library: StepLibrary,
        manifest: Manifest,
        weights: Mapping[str, torch.Tensor],
        *,
        plans: PlanTable,
        slots: int,
        logit_rows: int,
        graphs: bool = True,
    ) -> None:
        # Kernels may touch as many rows as their plan can be asked for.
        self.logit_rows = max(logit_rows, *(plan.logit_rows for plan in plans.all))
        self._device, self._api, self._library = device, device.api, library
        self._manifest, self._plans, self._use_graphs = manifest, plans, graphs
        self._main, self._aside = self._api.stream(), self._api.stream()
        with device.working():
            size = 4 * manifest.args.words
            words = device.allocate(size, "the arguments of a step", LESS_BESIDE)
            size = plans.workspace_bytes
            made = make_buffers(device, manifest, size, slots, self.logit_rows)
        self._args = DeviceArgs(manifest.args, words.view(torch.int32), self._api)
        self._bound = {**weights, **made}
        for name, tensor in self._bound.items():
            library.bind(name, tensor)
        self._graphs = DecodeGraphs(device, self._main, self._step)
        self._sampling = SlotSampling(slots, manifest.rules)
        self._allowed = allowed_words(manifest.rules)
        self._entries = [
            _entry(self._api, manifest, self._sampling) for _ in range(device.steps_in_flight + 1)
        ]
        self._turns = cycle(self._entries)
        self._next, self._last = next(self._turns), self._entries[-1]

    def warm_up(self) -> None:
        """Load all kernels and run each plan on nothing.

        What the driver allocates when kernels are first used is taken after this, so that the
        cache can be sized by what is left. Raises DeviceMemoryError, LaunchError.
        """
        with self._device.working():
            size = self._manifest.cache.page_bytes
            page = self._device.allocate(size, "the null page", LESS_BESIDE)
        self._bind_cache(page)
        self._give_states(1)
        with self._translated("loading the kernels"):
            for plan in self._plans.all:
                self._library.load(plan.id)
            self._send_nothing()
            with self._api.on(self._main):
                for plan in self._plans.all:
                    self._step(plan)
            self._api.synchronize()

    def graph_bytes(self) -> int:
        """Return the bytes that graphs will take, after `warm_up` and before `give_cache`."""
        return self._graphs.estimate(self._plans.decode) if self._use_graphs else 0

    def give_cache(self, pages: int, states: int = 0) -> None:
        """Allocate the cache and pages of states; `capture` follows.

        Raises DeviceMemoryError where they do not fit.
        """
        size = pages * self._manifest.cache.page_bytes
        advice = "lower --kv-cache-memory-bytes, --max-num-seqs or --max-model-len"
        with self._device.working():
            cache = self._device.allocate(size, f"the cache of {pages} pages", advice)
        self._bind_cache(cache)
        self._give_states(states)

    def capture(self) -> None:
        """Capture the graphs on the cache, and leave the null pages zero.

        Raises DeviceMemoryError where they do not fit.
        """
        if self._use_graphs:
            with self._translated("capturing graphs"):
                self._graphs.capture(self._plans.decode)
        # A kernel that clamps a place of padding to page 0 must find no NaN there.
        with self._device.working():
            for name in ("cache", "states"):
                if name in self._bound:
                    self._bound[name][0].zero_()

    def misses_graph(self, plan: Plan) -> bool:
        """Whether a step of `plan` is launched kernel by kernel though graphs are in use."""
        return self._use_graphs and not self._graphs.holds(plan)

    def args(self) -> ArgsWriter:
        """Return the args of the next step, once the device has read what they held before.

        A step that runs in pieces goes round the ring more often than others are waited for: what
        the entry's last step has answered is kept for whoever waits for it later.
        """
        if self._next.answer is not None:
            self._next.answer()
        with self._translated("waiting for arguments"):
            self._next.sent.synchronize()
        return self._next.args

    def start(self, plan: Plan, asked: int) -> Waiter:
        """Launch a step. Raises LaunchError where library or device refuse."""
        self.begin(plan)
        return self.follow(plan, asked)

    def begin(self, plan: Plan) -> None:
        """Launch a step as far as its logits. Raises LaunchError where library or device refuse."""
        entry, before = self._next, self._last
        with self._translated(f"a step of plan {plan.id}"), self._api.on(self._main):
            self._args.send(entry.args)
            entry.sent.record()
            self._main.wait_event(before.taken)
            if not self._graphs.replay(plan):
                self._step(plan)

    def follow(self, plan: Plan, asked: int, guidance: Guidance | None = None) -> Waiter:
        """Launch the choices of the step that has begun. Raises LaunchError."""
        entry = self._next
        with self._translated(f"what follows a step of plan {plan.id}"):
            with self._api.on(self._main):
                names = ["sampled", *self._follow(plan, entry.args, guidance)]
                entry.done.record()
            with self._api.on(self._aside):
                self._aside.wait_event(entry.done)
                for name in names if asked else ():
                    self._api.copy(entry.results[name][:asked], self._bound[name][:asked])
                entry.taken.record()
        self._last, self._next = entry, next(self._turns)
        entry.answer = cache(lambda: self._answer(entry, names, asked))
        return entry.answer

    def logits(self, count: int) -> Logits:
        """Wait for all steps; return rows of logits."""
        with self._translated("waiting for logits"):
            self._api.synchronize()
            rows: Logits = self._bound["logits"][:count].cpu().numpy()
        return rows

    def _follow(self, plan: Plan, args: ArgsWriter, guidance: Guidance | None) -> Iterator[str]:
        """Launch what follows a step for rows that ask more; yield the buffers to be copied."""
        for slot, words in self._sampling.take_new():
            staged = self._api.pinned(words.nbytes).view(torch.int32)
            staged.numpy()[:] = words
            self._api.copy(self._bound["rules"][slot, : len(words)], staged)
        if guidance is not None:
            self._guide(guidance)
        details = args.details
        if details is None:
            return
        if details.refine:
            self._library.refine(plan.id, self._args.tensor)
        if details.masks is not None:
            self._library.keep_masks(plan.id, self._args.tensor)
            yield "masks"
        if details.logprobs is not None:
            self._library.logprobs(plan.id, self._args.tensor)
            yield "logprobs"

    def _guide(self, guidance: Guidance) -> None:
        """Copy the bits of each row into its slot, out of one piece of pinned memory."""
        staged = self._api.pinned(guidance.bits.nbytes).view(torch.int32)
        staged = staged.view(guidance.bits.shape)
        staged.numpy()[:] = guidance.bits
        for slot, bits in zip(guidance.slots.tolist(), staged, strict=True):
            self._api.copy(self._bound["rules"][slot, self._allowed], bits)

    def _answer(self, entry: Entry, names: Sequence[str], asked: int) -> Answer:
        with self._translated("waiting for a step"):
            entry.taken.synchronize()
        found = {name: entry.results[name][:asked].numpy().copy() for name in names}
        return Answer(found["sampled"], found.get("logprobs"), found.get("masks"))

    def _step(self, plan: Plan) -> None:
        self._library.step(plan.id, self._args.tensor)

    def _bind_cache(self, content: torch.Tensor) -> None:
        self._bound["cache"] = content.view(-1, self._manifest.cache.page_bytes)
        self._library.bind("cache", self._bound["cache"])

    def _give_states(self, pages: int) -> None:
        """Allocate and bind pages of states, where the model has any."""
        size = pages * self._manifest.cache.state_bytes
        if not size:
            return
        self._bound.pop("states", None)
        with self._device.working():
            what = f"{pages} pages of states"
            content = self._device.allocate(size, what, "lower --max-num-seqs")
        self._bound["states"] = content.view(pages, -1)
        self._library.bind("states", self._bound["states"])

    def _send_nothing(self) -> None:
        """Put args on the device in which every row of every plan is padding."""
        writer = self._entries[0].args
        writer.write_nothing(max(self._plans.all, key=lambda plan: plan.size))
        with self._api.on(self._main):
            self._args.send(writer)

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Turn what torch raises into an error of ours that says what was done."""
        try:
            yield
        except (RuntimeError, LaunchError) as error:
            if is_out_of_memory(error):
                said = out_of_memory_text(self._device, error, doing)
                raise DeviceMemoryError(
                    f"{said}; lower --kv-cache-memory-bytes or --gpu-memory-utilization"
                ) from None
            if isinstance(error, LaunchError):
                raise
            reason = shown(str(error).strip().splitlines()[0] if str(error) else "", 200)
            raise LaunchError(f"{self._device.label}: {doing}: {reason}") from error


def _entry(api: Accelerator, manifest: Manifest, sampling: SlotSampling) -> Entry:
    words, rows = 4 * manifest.args.words, manifest.args.max_rows
    widths = {"sampled": 1}
    if manifest.rules is not None:
        widths["logprobs"] = manifest.rules.logprob_words
        widths["masks"] = manifest.rules.mask_words
    results = {n: api.pinned(4 * rows * w).view(torch.int32) for n, w in widths.items()}
    return Entry(
        args=ArgsWriter(manifest.args, sampling, api.pinned(words).view(torch.int32)),
        results={n: r if n == "sampled" else r.view(rows, -1) for n, r in results.items()},
        sent=api.event(),
        done=api.event(),
        taken=api.event(),
    )
