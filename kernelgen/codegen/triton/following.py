"""Owns the launches that may follow a GPU step: choices by rules, log-probabilities, kept sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Grid, Pointer
from kernelgen.codegen.cuda.unit import Argument, TritonUnit
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_sample import WARPS, WIDE, SampleTile
from kernelgen.codegen.rendering import render
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.step_rules import (
    HISTORY,
    LOGPROB_WORDS,
    MASK_IDS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    RulesLayout,
    mask_words,
    rules_layout,
)
from kernelgen.codegen.triton.sample import Maxima, candidate_constants, sample_constants
from kernelgen.ir.types import Sizes

REFINE, KEEP_MASKS, TELL = "refine", "keep_masks", "logprobs"
FOLLOWING = (REFINE, KEEP_MASKS, TELL)
"""names of the exports, in the order in which they may be called"""

_PARTS = 16
"""blocks of a row: few enough that many rows run together, since each has its own"""
_EDITED = (1024, 512, 256)
"""logits that a block edits at a time: 2048 spill, with the assembler of Triton 3.7 1024 too (for
sm_80)"""
_MASKED = (WIDE, WIDE // 2, WIDE // 4)
"""logits of a step of `keep_masks`: a vocabulary that 2048 divide needs no masks, is walked more at
a time, and spills"""
_TOLD = (WIDE, WIDE // 2)
"""logits of a step of `tell_logprobs`, likewise: 2048 spill for sm_80 where they divide"""
_CHOSEN = (WARPS, 2 * WARPS)
"""warps of `refine_choose`: with the assembler of Triton 3.9 eight spill for a small vocabulary"""
_POINTERS = {
    "token_ids": (Pointer.TOKEN_IDS, "*i32", "int32[T]"),
    "positions": (Pointer.POSITIONS, "*i32", "int32[T]"),
    "logits": (Pointer.LOGITS, "*fp32", "of the step"),
    "sampled": (Pointer.SAMPLED, "*i32", "id of each logit row"),
    "last_sampled": (Pointer.LAST_SAMPLED, "*i32", "newest token of each slot"),
    "counters": (Pointer.COUNTERS, "*i32", "zero again at the end"),
    "rules": (Pointer.RULES, "*i32", "of each slot"),
    "logprobs": (Pointer.LOGPROBS, "*i32", "of each logit row, written"),
    "masks": (Pointer.MASKS, "*i32", "of each logit row, written"),
    "args": (Pointer.ARGS, "*i32", "the step's arguments"),
}
_ARGS = (
    *("counts", "logit_token", "logit_row", "row_slot", "row_query_start", "row_seq_len"),
    *("temperature", "top_p", "top_k", "seed", "min_p", "rules", "logprobs", "logprob_token"),
    "mask",
)


def gpu_rules(vocabulary: int) -> RulesLayout:
    """The layout of a slot with the scratch that choosing among its logits takes."""
    return rules_layout(vocabulary, _tile(vocabulary).row_words(vocabulary))


def following_kernels(
    args: ArgsLayout, vocabulary: int, refused: Set[str] = frozenset()
) -> dict[str, GpuKernel]:
    """Every launch that may follow a step, by the name of its export. `refused`: the device's
    tiles that spilled or exceeded a limit (`Device.refused_tiles`).
    """
    rules = gpu_rules(vocabulary)
    return {
        REFINE: GpuKernel(
            (
                _edit(args, rules, vocabulary, refused),
                _choose(args, rules, vocabulary, refused),
            )
        ),
        KEEP_MASKS: GpuKernel((_masks(args, rules, vocabulary, refused),)),
        TELL: GpuKernel((_logprobs(args, rules, vocabulary, refused),)),
    }


def _tile(vocabulary: int) -> SampleTile:
    columns = 2048
    return SampleTile(columns, min(_PARTS, ceil_div(vocabulary, columns)), WARPS)


def _words(args: ArgsLayout, rules: RulesLayout) -> list[tuple[str, int]]:
    """Where fields start, as constants: those of args, then those of a slot."""
    found = [(name.upper(), args.offset(name)) for name in _ARGS]
    found += [(f"RULE_{f.name.upper()}", f.offset) for f in rules.fields]
    return [*found, ("SLOT_WORDS", rules.words), ("HISTORY_SIZE", HISTORY)]


def _edit_text(columns: int) -> str:
    return f"edited {columns}, warps {WARPS}"


def _edit(args: ArgsLayout, rules: RulesLayout, vocabulary: int, refused: Set[str]) -> GpuPass:
    tile = _tile(vocabulary)
    # Where all are refused, the last one is told: the build then ends with its fault.
    legal = [columns for columns in _EDITED if _edit_text(columns) not in refused]
    edited = legal[0] if legal else _EDITED[-1]
    constants = candidate_constants(vocabulary, tile, Maxima(), args)
    text = render(
        "triton/refine.py.j2",
        name="refine",
        header=["refine: edits the logits of rows with rules, and says which choices are marked"],
        parameters=_parameters(_EDIT),
        vocabulary=vocabulary,
        columns=edited,
        share=tile.share(vocabulary),
        bad_words=MAX_BAD_WORDS,
        bad_word_size=MAX_BAD_WORD_TOKENS,
        **constants | {"words": _words(args, rules)},
    )
    made = _pass("refine", text, _EDIT, lambda s: (tile.blocks(vocabulary), s.capacity.rows, 1))
    return replace(made, unit=replace(made.unit, tile=_edit_text(edited)))


_EDIT = ("token_ids", "positions", "logits", "rules", "counters", "args")
_CHOOSE = ("token_ids", "sampled", "counters", "last_sampled", "rules", "args")
_MASKS = ("logits", "rules", "masks", "args")
_TELL = ("logits", "sampled", "rules", "logprobs", "args")


def _chosen_text(warps: int) -> str:
    return f"chosen 2048, warps {warps}"


def _choose(args: ArgsLayout, rules: RulesLayout, vocabulary: int, refused: Set[str]) -> GpuPass:
    tile = _tile(vocabulary)
    legal = [warps for warps in _CHOSEN if _chosen_text(warps) not in refused]
    warps = legal[0] if legal else _CHOSEN[-1]
    constants = sample_constants(vocabulary, tile, Maxima(), args, has_rules=True)
    text = render(
        "triton/sample.py.j2",
        name="refine_choose",
        header=["refine_choose: the choice of rows with rules, among their edited logits"],
        parameters=_parameters(_CHOOSE),
        sampled="sampled",
        **constants | {"words": _words(args, rules)},
    )
    blocks = tile.blocks(vocabulary)
    made = _pass("refine_choose", text, _CHOOSE, lambda s: (blocks, s.capacity.rows, 1))
    return replace(made, unit=replace(made.unit, tile=_chosen_text(warps), num_warps=warps))


def _masks_text(columns: int) -> str:
    return f"masked {columns}, warps {WARPS}"


def _masks(args: ArgsLayout, rules: RulesLayout, vocabulary: int, refused: Set[str]) -> GpuPass:
    legal = [columns for columns in _MASKED if _masks_text(columns) not in refused]
    wide = legal[0] if legal else _MASKED[-1]
    text = render(
        "triton/masks.py.j2",
        name="keep_masks",
        header=["keep_masks: which tokens min-p, top-k and top-p have kept"],
        parameters=_parameters(_MASKS),
        vocabulary=vocabulary,
        wide=wide,
        out_words=mask_words(vocabulary),
        ids=MASK_IDS,
        words=_words(args, rules),
    )
    made = _pass("keep_masks", text, _MASKS, lambda s: (s.capacity.rows, 1, 1))
    return replace(made, unit=replace(made.unit, tile=_masks_text(wide)))


def _told_text(columns: int) -> str:
    return f"told {columns}, warps {WARPS}"


def _logprobs(args: ArgsLayout, rules: RulesLayout, vocabulary: int, refused: Set[str]) -> GpuPass:
    legal = [columns for columns in _TOLD if _told_text(columns) not in refused]
    wide = legal[0] if legal else _TOLD[-1]
    text = render(
        "triton/logprobs.py.j2",
        name="tell_logprobs",
        header=["tell_logprobs: log-probabilities, ranks and the likeliest tokens"],
        parameters=_parameters(_TELL),
        vocabulary=vocabulary,
        columns=wide,
        members=next_power_of_two(ceil_div(vocabulary, wide)),
        most=MAX_LOGPROBS,
        most_range=next_power_of_two(MAX_LOGPROBS),
        out_words=LOGPROB_WORDS,
        words=_words(args, rules),
    )
    made = _pass("tell_logprobs", text, _TELL, lambda s: (s.capacity.rows, 1, 1))
    return replace(made, unit=replace(made.unit, tile=_told_text(wide)))


def _parameters(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"name": name, "note": _POINTERS[name][2]} for name in names]


def _pass(name: str, text: str, names: Sequence[str], grid: Callable[[Sizes], Grid]) -> GpuPass:
    unit = TritonUnit(
        name=name,
        text=text,
        function=name,
        signature=tuple(Argument(n, _POINTERS[n][1], 16) for n in names),
        num_warps=WARPS,
        num_stages=1,
        pdl=True,
    )
    return GpuPass(unit, tuple(_POINTERS[n][0] for n in names), grid)
