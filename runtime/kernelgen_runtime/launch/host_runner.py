"""Owns running steps on the CPU: args and results are in plain sight, a step returns when done."""

from collections.abc import Mapping

import torch

from ..artifact.manifest import Manifest, Plan
from ..device.host import HostDevice
from .args import ArgsWriter, Ints, SlotSampling
from .details import Answer
from .library import StepLibrary
from .runner import Guidance, Logits, Waiter, allowed_words, make_buffers


class HostRunner:
    """A `Runner` whose buffers live as long as this object."""

    def __init__(
        self,
        device: HostDevice,
        library: StepLibrary,
        manifest: Manifest,
        weights: Mapping[str, torch.Tensor],
        *,
        workspace_bytes: int,
        slots: int,
        logit_rows: int,
        pages: int,
        states: int = 0,
    ) -> None:
        self.logit_rows = logit_rows
        self._library = library
        words = torch.zeros(manifest.args.words, dtype=torch.int32)
        self._sampling = SlotSampling(slots, manifest.rules)
        self._allowed = allowed_words(manifest.rules)
        self._args = ArgsWriter(manifest.args, self._sampling, words)
        page_bytes = manifest.cache.page_bytes
        cache = device.allocate(pages * page_bytes, "a cache", "lower --kv-cache-memory-bytes")
        made = make_buffers(device, manifest, workspace_bytes, slots, logit_rows)
        self._bound = {**weights, **made, "cache": cache.view(pages, page_bytes)}
        if states:
            size = states * manifest.cache.state_bytes
            content = device.allocate(size, f"{states} pages of states", "lower --max-num-seqs")
            self._bound["states"] = content.view(states, -1)
        for name, tensor in self._bound.items():
            library.bind(name, tensor)

    def misses_graph(self, plan: Plan) -> bool:
        """Return False: there are no graphs here."""
        return False

    def args(self) -> ArgsWriter:
        """Return the args of the next step."""
        return self._args

    def start(self, plan: Plan, asked: int) -> Waiter:
        """Run a step to its end. Raises LaunchError where the library refuses."""
        self.begin(plan)
        return self.follow(plan, asked)

    def begin(self, plan: Plan) -> None:
        """Run a step as far as its logits. Raises LaunchError where the library refuses."""
        for slot, words in self._sampling.take_new():
            self._bound["rules"][slot, : len(words)] = torch.from_numpy(words)
        self._library.step(plan.id, self._args.tensor)

    def follow(self, plan: Plan, asked: int, guidance: Guidance | None = None) -> Waiter:
        """Choose where rows ask for more than the step gives. Raises LaunchError."""
        args, details = self._args.tensor, self._args.details
        if guidance is not None:
            rules: Ints = self._bound["rules"].numpy()
            rules[guidance.slots, self._allowed] = guidance.bits
        if details is None:
            answer = Answer(self._bound["sampled"][:asked].clone().numpy())
            return lambda: answer
        if details.refine:
            self._library.refine(plan.id, args)
        if details.masks is not None:
            self._library.keep_masks(plan.id, args)
        if details.logprobs is not None:
            self._library.logprobs(plan.id, args)
        answer = Answer(
            self._bound["sampled"][:asked].clone().numpy(),
            None if details.logprobs is None else self._rows("logprobs", asked),
            None if details.masks is None else self._rows("masks", asked),
        )
        return lambda: answer

    def _rows(self, name: str, count: int) -> Ints:
        rows: Ints = self._bound[name][:count].clone().numpy()
        return rows

    def logits(self, count: int) -> Logits:
        """Return rows of logits."""
        rows: Logits = self._bound["logits"][:count].numpy()
        return rows
