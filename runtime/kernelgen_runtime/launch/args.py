"""Owns writing the int32 `args` tensor of a step, as the manifest lays it out."""

import numpy as np
import numpy.typing as npt
import torch

from ..artifact.manifest import ArgsSchema, Plan, RulesSchema, elements
from ..artifact.relations import STATE_FIELDS
from ..memory.cache import CacheTables
from ..memory.groups import pages_of
from ..memory.pool import NULL_PAGE
from ..memory.states import StateRows, state_rows
from ..sample.reference import Rules
from ..schedule.request import Request
from ..schedule.step import Step
from .details import GUIDED, LOGPROBS, MASK, PROMPT_LOGPROBS, RULES, TOLD, Details
from .rules import rule_words

Ints = npt.NDArray[np.int32]

OF_SHAPE = frozenset(
    ("row_slot", "row_query_start", "temperature", "top_p", "top_k", "seed", "min_p", "rules")
)
"""fields that follow from which requests a step has, in which slots and plan"""
BESIDE_IDS = RULES | LOGPROBS | MASK | GUIDED
"""what a row may want of its own logits beside an id"""


class SlotSampling:
    """Sampling parameters by slot, rewritten when a slot has a new owner."""

    def __init__(self, slots: int, rules: RulesSchema | None = None) -> None:
        self.asks = np.zeros(slots, np.int32)
        self.logprobs = np.full(slots, -1, np.int32)
        self.min_p = np.zeros(slots, np.float32)
        self._schema = rules
        self._new: list[tuple[int, Ints]] = []
        self.temperature = np.zeros(slots, np.float32)
        self.top_p = np.ones(slots, np.float32)
        self.top_k = np.zeros(slots, np.int32)
        self._seed = np.zeros(slots, np.int64)
        self.seed_words: Ints = self._seed.view("<i4").reshape(slots, 2)
        self._owner: list[Request | None] = [None] * slots
        self.owners = 0
        """counts changes of owners"""

    def own(self, slot: int, request: Request) -> None:
        """Note that `slot` belongs to `request`."""
        if self._owner[slot] is request:
            return
        self._owner[slot] = request
        self.owners += 1
        self.temperature[slot] = request.params.temperature
        self.top_p[slot] = request.params.top_p
        self.top_k[slot] = request.params.top_k
        self._seed[slot] = request.seed
        self.min_p[slot] = request.params.min_p
        self._own_details(slot, request)

    def take_new(self) -> list[tuple[int, Ints]]:
        """Return the slots that got rules since the last call, with the words they begin with."""
        new, self._new = self._new, []
        return new

    def _own_details(self, slot: int, request: Request) -> None:
        params, mark = request.params, request.mark
        told = TOLD if params.logprob_token_ids is not None else -1
        self.logprobs[slot] = told if params.logprobs is None else params.logprobs
        ruled = params.changes_logits or mark is not None
        self.asks[slot] = (
            RULES * ruled
            + LOGPROBS * params.tells_logprobs
            + MASK * params.return_sampling_mask
            + PROMPT_LOGPROBS * (params.prompt_logprobs is not None)
            + GUIDED * (request.guide is not None)
        )
        if not ruled and params.logprob_token_ids is None:
            return
        assert self._schema is not None, "requests are refused where the artifact has no rules"
        prompt = request.tokens[: request.prompt_tokens]
        rules = Rules(params, prompt, request.output_ids, tuple(request.stop_ids), mark)
        self._new.append((slot, rule_words(self._schema, rules)))


class ArgsWriter:
    """One `args` tensor on the host and NumPy views of its fields.

    `tensor` (int32 [words]) is what a step gets, `words` the same in NumPy. `used` says how much of
    each field the step now written may read: entries of a list, rows and columns of a block table.
    """

    def __init__(self, schema: ArgsSchema, sampling: SlotSampling, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.words: Ints = tensor.numpy()
        self.words[:] = 0
        self.fields: dict[str, Ints] = {}
        for field in schema.fields:
            span = self.words[field.offset : field.offset + elements(field.shape)]
            span = span.reshape(field.shape)
            self.fields[field.name] = span.view(np.float32) if field.bits == "float32" else span
        self.used: dict[str, tuple[int, ...]] = {}
        self.details: Details | None = None
        self._max_rows = schema.max_rows
        self._sampling = sampling
        self.shape: tuple[object, ...] | None = None
        """equal shapes: equal contents of `OF_SHAPE`; None where nothing is known of them"""
        self._asked = 0
        self._asks: Ints = np.zeros(0, np.int32)  # of each row, and by any of them
        self._wanted = 0

    def write(
        self, step: Step, plan: Plan, cache: CacheTables, *, leaves_states: bool = True
    ) -> None:
        """Write everything but the logit rows; see `ask`.

        `leaves_states` False: the step will run again, and has to find the states as they are.
        """
        count, slots, ends = len(step.requests), step.slots, step.ends
        self._write_rows(step, ends)
        # Row after row the same as when these args were last written: the usual decode step.
        shape = (self._sampling.owners, plan.id, count, step.tokens, slots.tobytes())
        if shape != self.shape or not step.is_decode:
            self._write_shape(step, plan)
            self.shape = shape
        self.fields["counts"][:] = (step.tokens, count, 0, 0)
        pages = pages_of(int(ends.max()))
        for group, table in zip(cache.groups, cache.tables, strict=True):
            if group.per_request:
                rows = state_rows(table, slots, step.starts, ends)
                self._write_states(rows, count, leaves_states)
                continue
            name = f"block_table.{group.name}"
            self.fields[name][:count, :pages] = table[:, :pages][slots]
            self.used[name] = (count, pages)

    def _write_shape(self, step: Step, plan: Plan) -> None:
        """Write what depends on which requests there are, and not on how far they are."""
        count, slots = len(step.requests), step.slots
        self._pad(plan, count, step.tokens)
        self.fields["row_slot"][:count] = slots
        self.fields["row_query_start"][1 : count + 1] = step.counts.cumsum()
        for name in ("temperature", "top_p", "top_k"):
            self.fields[name][:count] = getattr(self._sampling, name)[slots]
        self.fields["seed"][:count] = self._sampling.seed_words[slots]
        self._asks = self._sampling.asks[slots]
        self._wanted = int(np.bitwise_or.reduce(self._asks, initial=0))
        if "rules" in self.fields:
            self.fields["min_p"][:count] = self._sampling.min_p[slots]
            self.fields["rules"][:count] = self._asks & RULES

    def details_of(self, rows: npt.NDArray[np.intp]) -> Details | None:
        """Return what the request rows `rows` want of their logit rows, in this order; None where
        ids are all. For the step that was written last.
        """
        if not self._wanted & BESIDE_IDS:  # by any row
            return None
        asks, slots = self._asks[rows], self.fields["row_slot"][rows]
        wanted = int(np.bitwise_or.reduce(asks, initial=0)) & BESIDE_IDS
        if not wanted:
            return None
        return Details(
            refine=bool(wanted & RULES),
            logprobs=self._sampling.logprobs[slots] if wanted & LOGPROBS else None,
            masks=np.minimum(asks & MASK, 1) if wanted & MASK else None,
            guided=np.flatnonzero(asks & GUIDED) if wanted & GUIDED else None,
        )

    def prompt_rows(self) -> list[int]:
        """Return the request rows that ask log-probabilities of their prompt, as `details_of`."""
        if not self._wanted & PROMPT_LOGPROBS:
            return []
        return np.flatnonzero(self._asks & PROMPT_LOGPROBS).tolist()

    def write_nothing(self, plan: Plan) -> None:
        """Write a step of `plan` in which every row is padding."""
        self._pad(plan, 0, 0)
        self.shape = None
        self.details = None
        self.ask([], [])

    def ask(
        self,
        tokens: npt.ArrayLike,
        rows: npt.ArrayLike,
        *,
        read: bool = True,
        details: Details | None = None,
    ) -> None:
        """Ask logits of token rows `tokens`; `rows` says which request row samples, -1 for none.

        `read` False: only the chosen ids will be read, so that kernels may spare storing logits.
        `details`: what rows want beside ids.
        """
        asked = np.asarray(tokens, np.int32)
        self.fields["counts"][2:] = (len(asked), not read and details is None)
        self.details = details
        if details is not None:
            self._ask_details(details, len(asked))
        self.fields["logit_token"][: len(asked)] = asked
        self.fields["logit_row"][: len(asked)] = rows
        if len(asked) < self._asked:  # rows that these args asked for before
            self.fields["logit_token"][len(asked) : self._asked] = 0
            self.fields["logit_row"][len(asked) : self._asked] = -1
        self._asked = len(asked)

    def _ask_details(self, details: Details, count: int) -> None:
        wanted = {
            "logprobs": details.logprobs,
            "logprob_token": details.tokens,
            "mask": details.masks,
        }
        for name, values in wanted.items():
            self.fields[name][:count] = (0 if name == "mask" else -1) if values is None else values
            self.used[name] = (count,)

    def _write_rows(self, step: Step, ends: npt.NDArray[np.int64]) -> None:
        """Write tokens and lengths."""
        self.fields["token_ids"][: step.tokens] = step.token_ids
        self.fields["row_seq_len"][: len(ends)] = ends
        for request in step.entered:
            self._sampling.own(request.slot, request)

    def _write_states(self, rows: StateRows, count: int, leaves_states: bool) -> None:
        """Write which pages of states the rows read, leave, and keep on the way."""
        self.fields["state_from"][:count] = rows.before
        self.fields["state_to"][:count] = rows.after if leaves_states else NULL_PAGE
        self.fields["state_mark"][:count] = rows.mark if leaves_states else NULL_PAGE
        self.fields["state_mark_at"][:count] = rows.mark_at
        self.used |= dict.fromkeys(STATE_FIELDS, (count,))

    def _pad(self, plan: Plan, rows: int, tokens: int) -> None:
        """Write counts, the first row's start, and rows up to the plan's size that do nothing."""
        stop = min(plan.size, self._max_rows)
        self.fields["counts"][:] = (tokens, rows, 0, 0)
        self.fields["row_query_start"][0] = 0
        self.fields["row_query_start"][rows : stop + 1] = tokens
        self.fields["row_slot"][rows:stop] = -1
        self.fields["row_seq_len"][rows:stop] = 0
        self.fields["logit_token"][:stop] = 0
        self.fields["logit_row"][:stop] = -1
        self._asked = 0
        self.fields["temperature"][rows:stop] = 0
        self.fields["token_ids"][tokens : plan.size] = 0
        self.used = {
            "counts": (4,),
            "token_ids": (plan.size,),
            "row_query_start": (stop + 1,),
            **dict.fromkeys(("row_slot", "row_seq_len", "logit_token", "logit_row"), (stop,)),
            "temperature": (stop,),
            **dict.fromkeys(("top_p", "top_k", "seed", "min_p", "rules"), (rows,)),
        }
