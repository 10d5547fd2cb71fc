"""Owns launching the steps of one running model and taking what they chose."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..artifact.manifest import Plan
from ..errors import LaunchError
from ..guide.fill import fill_all
from ..memory.cache import CacheTables
from ..schedule.request import NO_CHOICE, Status
from ..schedule.step import Step
from .details import Answer
from .plans import PlanTable
from .runner import Guidance, Logits, Runner, Waiter
from .told import PromptRows, note_details, prompt_rows

Said = Sequence[tuple[PromptRows, Answer]]
NOTHING_TOLD = PromptRows()
NOTHING_SAID: Said = ()


@dataclass
class Flight:
    """A step that was launched; `asking` are its rows whose next id is asked, in order. Its answer
    begins with what it says of the prompt tokens `told`; `early` is what was said before.

    `wait` None: it is held, with its logits computed. Grammars bind choices of its that need ids
    which are still in flight; `Program.resume` lets it choose once those have settled.
    """

    step: Step
    plan: Plan
    asking: npt.NDArray[np.intp]
    told: PromptRows = NOTHING_TOLD
    early: Said = NOTHING_SAID
    wait: Waiter | None = None
    guided: npt.NDArray[np.intp] | None = None
    """of `asking`, those whose choice a grammar binds"""

    @property
    def asked(self) -> int:
        """Logit rows of its answer."""
        return len(self.told) + len(self.asking)


class Program:
    """A runner, the plans it may run and the block tables that its args are written from.

    `eager_decodes` counts decode steps that ran kernel by kernel where graphs are in use.
    """

    def __init__(self, runner: Runner, plans: PlanTable, tables: CacheTables, vocab: int) -> None:
        self._runner, self._plans, self._tables = runner, plans, tables
        self._vocab = vocab
        self.eager_decodes = 0

    def launch(self, step: Step, *, logits: bool = False, may_hold: bool = False) -> Flight:
        """Start `step`. Raises LaunchError where the library refuses.

        `logits`: whether somebody reads them afterwards; else those of greedy rows may be missing.
        `may_hold`: whether earlier steps are in flight, so that it may have to be held.
        """
        plan = self._plans.choose(len(step.requests), step.tokens)
        args = self._runner.args()
        args.write(step, plan, self._tables)
        asking, ends = step.samples.nonzero()[0], step.counts.cumsum()
        tokens, rows, details = ends[asking] - 1, asking, args.details_of(asking)
        told, early = NOTHING_TOLD, NOTHING_SAID
        guided = None if details is None else details.guided
        if of := args.prompt_rows():
            told, early = self._tell_first(step, plan, prompt_rows(step, of), len(asking))
            tokens = np.concatenate([np.array(told.rows, np.int64), tokens])
            rows = np.concatenate([np.full(len(told), -1), rows])
            details = told.details(len(asking), details)
            args = self._runner.args()
            args.write(step, plan, self._tables)
        args.ask(tokens, rows, read=logits, details=details)
        self.eager_decodes += step.is_decode and self._runner.misses_graph(plan)
        flight = Flight(step, plan, asking, told, early, guided=guided)
        if guided is None:
            flight.wait = self._runner.start(plan, flight.asked)
            return flight
        self._runner.begin(plan)
        if not (may_hold and _needs_ids(flight)):
            flight.wait = self._runner.follow(plan, flight.asked, self._guidance(flight))
        return flight

    def resume(self, flight: Flight) -> None:
        """Let a held step choose: all ids that it needs have settled.

        Where the library refuses, `wait` raises that.
        """
        try:
            guidance = self._guidance(flight)
            flight.wait = self._runner.follow(flight.plan, flight.asked, guidance)
        except LaunchError as error:
            flight.wait = partial(_raise, error)

    def _guidance(self, flight: Flight) -> Guidance:
        """Return what grammars let through, for the guided rows of `flight`."""
        step, rows = flight.step, _guided_rows(flight)
        guides = []
        for row in rows.tolist():
            request = step.requests[row]
            is_over = request.status is Status.FINISHED  # its id is dropped, whatever it is
            known, end = len(request.tokens), int(step.starts[row] + step.counts[row])
            assert is_over or known == end, "grammars see every token before a choice"
            guides.append(None if is_over else request.guide)
        bits = np.empty((len(rows), -(-self._vocab // 32)), np.int32)
        fill_all(guides, bits)
        return Guidance(step.slots[rows], bits)

    def _tell_first(
        self, step: Step, plan: Plan, told: PromptRows, asking: int
    ) -> tuple[PromptRows, Said]:
        """Run `step` without choosing for prompt tokens that have no room in its answer beside
        `asking` rows; return those that have, and the others with what is said of them.

        It writes the same keys and values to the same places each time, and leaves states to the
        run that chooses.
        """
        capacity, early = min(self._runner.logit_rows, plan.logit_rows), []
        while len(told) + asking > capacity:
            piece, told = told.cut(capacity)
            args = self._runner.args()
            args.write(step, plan, self._tables, leaves_states=False)
            args.ask(piece.rows, -1, details=piece.details(0, None))
            early.append((piece, self._runner.start(plan, len(piece))()))
        return told, early

    def wait(self, flight: Flight) -> npt.NDArray[np.int64]:
        """Wait for a step and return the id chosen for each row, -1 where none was asked.

        `NO_CHOICE` is passed on. Raises LaunchError where a library gives no id of the vocabulary.
        """
        if flight.wait is None:
            self.resume(flight)
        assert flight.wait is not None
        for told, said in flight.early:  # only now: an earlier step may have told of tokens before
            told.note(said)
        answer = flight.told.note(flight.wait())
        ids = answer.ids
        if answer.tells:
            requests = flight.step.requests
            note_details([requests[i] for i in flight.asking], answer, self._vocab)
        if len(ids) and ids.view(np.uint32).max() >= self._vocab:  # below zero, too
            for strange in ids[(ids != NO_CHOICE) & ((ids < 0) | (ids >= self._vocab))]:
                raise LaunchError(
                    f"step {flight.step.number}: sampled {strange}, ids are 0 to {self._vocab - 1}"
                )
        chosen = np.full(len(flight.step.requests), -1)
        chosen[flight.asking] = ids
        return chosen

    def logits(self, count: int) -> Logits:
        """Return the first `count` rows of logits of the last step, launched with `logits`."""
        return self._runner.logits(count)

    def run_logits(self, step: Step) -> Iterator[tuple[int, Logits]]:
        """Run `step` and yield (first token row, logits [n, vocab]) for all its token rows.

        The logits buffer holds some rows only: the step is run again for each piece, writing the
        same keys and values to the same places, and states in the last one. A piece holds until the
        next is asked for.
        """
        plan = self._plans.choose(len(step.requests), step.tokens)
        capacity = min(self._runner.logit_rows, plan.logit_rows)
        for first in range(0, step.tokens, capacity):
            tokens = np.arange(first, min(first + capacity, step.tokens))
            args = self._runner.args()
            is_last = first + capacity >= step.tokens
            args.write(step, plan, self._tables, leaves_states=is_last)
            args.ask(tokens, -1)
            self._runner.start(plan, 0)
            yield first, self._runner.logits(len(tokens))


def _guided_rows(flight: Flight) -> npt.NDArray[np.intp]:
    assert flight.guided is not None
    return flight.asking[flight.guided]


def _needs_ids(flight: Flight) -> bool:
    """Whether the choice of a guided row needs an id that is still in flight."""
    step = flight.step
    return any(
        len(step.requests[row].tokens) < step.starts[row] + step.counts[row]
        for row in _guided_rows(flight).tolist()
    )


def _raise(error: LaunchError) -> NoReturn:
    raise error
