"""Owns the bound buffers of one running model and launching its steps."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch

from ..artifact.manifest import Manifest
from ..buffers import host_bytes
from ..errors import CapacityError, LaunchError
from ..memory.cache import CacheTables
from ..schedule.step import Step
from .args import ArgsWriter
from .library import StepLibrary
from .plans import PlanTable


class Program:
    """A library with every buffer bound. Buffers live as long as this object."""

    def __init__(
        self,
        library: StepLibrary,
        manifest: Manifest,
        weights: Mapping[str, torch.Tensor],
        tables: CacheTables,
        plans: PlanTable,
        logit_rows: int,
    ) -> None:
        slots, pages = len(tables.tables[0]), tables.pool.pages
        self._library, self._plans, self._tables = library, plans, tables
        self._vocab = manifest.vocab
        self._args = ArgsWriter(manifest.args, slots)
        try:
            cache = host_bytes(pages * manifest.cache.page_bytes)
        except MemoryError:
            size = pages * manifest.cache.page_bytes
            raise CapacityError(f"no memory for a cache of {size} bytes") from None
        self.logits = host_bytes(4 * logit_rows * manifest.vocab).view(torch.float32)
        self.logits = self.logits.view(logit_rows, manifest.vocab)
        sampled = torch.full((manifest.args.max_rows,), -1, dtype=torch.int32)
        self._sampled: npt.NDArray[np.int32] = sampled.numpy()
        self._bound = {
            **weights,
            "cache": cache.view(pages, manifest.cache.page_bytes),
            "workspace": host_bytes(plans.workspace_bytes),
            "logits": self.logits,
            "last_sampled": torch.zeros(slots, dtype=torch.int32),
            "sampled": sampled,
        }
        for name, tensor in self._bound.items():
            library.bind(name, tensor)

    def run(self, step: Step) -> list[int]:
        """Run `step` and return the id chosen for each row, -1 where none was asked.

        Raises LaunchError where the library refuses, or chooses no token of the vocabulary.
        """
        plan = self._plans.choose(len(step.rows), step.tokens)
        self._args.write(step, plan, self._tables)
        ends = np.cumsum([row.count for row in step.rows])
        asking = np.flatnonzero([row.samples for row in step.rows])
        self._args.ask(ends[asking] - 1, asking)
        self._library.step(plan.id, self._args.tensor)
        ids = self._sampled[: len(asking)]
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._vocab):
            raise LaunchError(f"step {step.number}: sampled {ids.min()} (are the weights finite?)")
        chosen = np.full(len(step.rows), -1)
        chosen[asking] = ids
        result: list[int] = chosen.tolist()
        return result

    def run_logits(self, step: Step) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Run `step` and yield (first token row, logits [n, vocab]) for all its token rows.

        The logits buffer holds some rows only: the step is run again for each piece, writing the
        same keys and values to the same places. A piece holds until the next is asked for.
        """
        plan = self._plans.choose(len(step.rows), step.tokens)
        self._args.write(step, plan, self._tables)
        # A plan may serve no more logit rows than it has tokens.
        capacity = min(len(self.logits), len(self._sampled), plan.size)
        for first in range(0, step.tokens, capacity):
            tokens = np.arange(first, min(first + capacity, step.tokens))
            self._args.ask(tokens, -1)
            self._library.step(plan.id, self._args.tensor)
            yield first, self.logits[: len(tokens)].numpy()
