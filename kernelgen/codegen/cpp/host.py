"""Owns the step program of the CPU target: plans as tables of launches, weights and buffer
places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelgen.codegen.rendering import render
from kernelgen.codegen.step_args import STATE_FIELDS, ArgsLayout
from kernelgen.codegen.step_rules import (
    HISTORY,
    LOGPROB_WORDS,
    MASK_IDS,
    MAX_BAD_WORD_TOKENS,
    MAX_LOGPROBS,
    RulesLayout,
    mask_words,
)
from kernelgen.codegen.weights import BoundWeight
from kernelgen.planner.caches import CacheSchema
from kernelgen.planner.plan import Launch, Operand, Plan

_ELEMENTS = {
    "float32": "Element::f32",
    "bfloat16": "Element::bf16",
    "int32": "Element::i32",
    "uint8": "Element::u8",
}
_BOUND = {"logits": "LOGITS", "sampled": "SAMPLED"}
_STEP = {
    "token_ids": "TOKEN_IDS",
    "positions": "POSITIONS",
    "rows": "ROWS",
    "logit_tokens": "LOGIT_TOKENS",
    "sampling": "SAMPLING",
}
_PLAIN_FIELDS = (
    "counts",
    "token_ids",
    "row_slot",
    "row_query_start",
    "row_seq_len",
    "logit_token",
    "logit_row",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "min_p",
    "rules",
    "logprobs",
    "logprob_token",
    "mask",
)


@dataclass
class _Tables:
    """Schedules and slot tables, each distinct one once."""

    weight: dict[str, int]
    layer: dict[tuple[int, int], int]
    kernel: dict[str, int]
    schedules: dict[tuple[Any, ...], int] = field(default_factory=dict)
    slots: dict[tuple[int, ...], int] = field(default_factory=dict)

    def plan(self, plan: Plan) -> dict[str, Any]:
        """A plan as numbers into the tables."""
        places: dict[int, int] = {}
        lines = tuple(self._line(launch, places) for launch in plan.launches)
        schedule = self.schedules.setdefault(lines, len(self.schedules))
        slots = self.slots.setdefault(tuple(places) or (0,), len(self.slots))
        return {
            "phase": f"Phase::{plan.phase}",
            "size": plan.size,
            "schedule": schedule,
            "launches": len(lines),
            "slots": slots,
            "workspace_bytes": plan.workspace_bytes,
        }

    def _line(self, launch: Launch, places: dict[int, int]) -> tuple[Any, ...]:
        refs = tuple(self._ref(o, places) for o in launch.operands)
        layer = "" if launch.layer is None else f"layer {launch.layer} "
        names = ", ".join(
            o.name.rpartition(".")[2] if o.kind == "weight" else o.name for o in launch.operands
        )
        return self.kernel[launch.kernel.name], refs, f"{layer}{launch.kernel.name}({names})"

    def _ref(self, operand: Operand, places: dict[int, int]) -> str:
        if operand.kind == "buffer":
            return f"slot({places.setdefault(operand.offset_bytes, len(places))})"
        if operand.kind == "weight":
            return f"weight({self.weight[operand.name]})"
        if operand.kind == "state":
            assert operand.layer is not None
            return f"layer({self.layer[operand.layer, operand.number]})"
        if operand.kind == "bound":
            return f"bound({_BOUND[operand.name]})"
        return f"value({_STEP[operand.name]})"


def step_program(
    plans: Sequence[Plan],
    kernels: Sequence[str],
    weights: Sequence[BoundWeight],
    cache: CacheSchema,
    args: ArgsLayout,
    rules: RulesLayout,
    vocabulary: int,
) -> dict[str, str]:
    """`step.cpp` and `kernels.h`."""
    operands = {k.name: len(k.signature) for plan in plans for k in plan.kernels}
    tables = _Tables(
        weight={w.name: i for i, w in enumerate(weights)},
        layer={place: i for i, place in enumerate(cache.kept_places)},
        kernel={name: i for i, name in enumerate(kernels)},
    )
    rows = [tables.plan(plan) for plan in plans]
    text = render(
        "host/step.cpp.j2",
        model=plans[0].graph.name,
        weights=[
            {
                "name": w.name,
                "dtype": _ELEMENTS[w.dtype],
                "elements": w.elements,
                "layout": w.layout,
                "shape": "×".join(map(str, w.shape)),
            }
            for w in weights
        ],
        layers=[
            {"group": cache.places[layer].group, "offset": cache.places[layer].at(number)}
            for layer, number in cache.kept_places
        ],
        kernels=[{"name": name, "operands": operands[name]} for name in kernels],
        schedules=[
            [{"kernel": kernel, "refs": refs, "note": note} for kernel, refs, note in lines]
            for lines in tables.schedules
        ],
        slots=list(tables.slots),
        plans=rows,
        vocabulary=vocabulary,
        page_bytes=cache.page_bytes,
        state_bytes=cache.state_bytes,
        max_tokens=args.max_tokens,
        max_rows=args.max_rows,
        max_pages=args.max_pages,
        args_words=args.words,
        fields=[
            {"name": name, "offset": args.offset(name)}
            for name in (*_PLAIN_FIELDS, *(STATE_FIELDS if cache.state_bytes else ()))
        ],
        block_tables=[args.offset(f"block_table.{g.name}") for g in cache.token_groups],
        rules=_rules(rules, vocabulary),
    )
    return {"step.cpp": text, "kernels.h": render("host/kernels.h.j2", kernels=kernels)}


def _rules(rules: RulesLayout, vocabulary: int) -> list[dict[str, Any]]:
    """The members of `RuleFields` in their order."""
    sizes = {
        "history_size": HISTORY,
        "bad_word_size": MAX_BAD_WORD_TOKENS,
        "logprob_words": LOGPROB_WORDS,
        "most_logprobs": MAX_LOGPROBS,
        "mask_words": mask_words(vocabulary),
        "mask_ids": MASK_IDS,
    }
    members = {"words": rules.words, **{f.name: f.offset for f in rules.fields}, **sizes}
    return [{"name": name, "value": value} for name, value in members.items()]
