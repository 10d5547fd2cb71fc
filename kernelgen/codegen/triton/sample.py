"""Owns the Triton of the choice of a token: how a row is cut into parts and groups, and what scratch that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.step_args import ArgsLayout

GROUP = 64
"""neighbouring logits that share one entry of the list of maxima"""
LIST = 4096
"""logits that the exact search holds in the registers of one block"""
SAMPLING_FIELDS = (
    "counts row_slot row_query_start row_seq_len logit_token logit_row temperature top_p top_k seed"
).split()


@dataclass(frozen=True)
class SampleCut:
    """One row of logits in parts (one block each) of groups."""

    vocabulary: int
    columns: int
    """logits of a step"""
    wanted: int
    """blocks of a row"""

    @property
    def share(self) -> int:
        """Logits of a block, whole steps."""
        return ceil_div(ceil_div(self.vocabulary, self.wanted), self.columns) * self.columns

    @property
    def parts(self) -> int:
        """Blocks that have a share."""
        return ceil_div(self.vocabulary, self.share)

    @property
    def groups(self) -> int:
        """Entries of the list of maxima."""
        return ceil_div(self.vocabulary, GROUP)

    @property
    def row_words(self) -> int:
        """32-bit words of scratch for a row: two of each part, maxima and numbers of groups, the list with its tokens."""
        return -(-2 * (self.parts + self.groups + LIST) // 32) * 32


def sample_context(
    vocabulary: int, columns: int, parts: int, args: ArgsLayout, *, capacity: int = 0
) -> dict[str, Any]:
    """What `triton/sample.py.j2` needs for its constants.

    `capacity`: logit rows of the largest step where the product before it keeps the best candidates; 0 where blocks scan.
    """
    cut = SampleCut(vocabulary, columns, parts)
    return {
        "vocabulary": vocabulary,
        "columns": columns,
        "parts": cut.parts,
        "share": cut.share,
        "parts_range": next_power_of_two(cut.parts),
        "group": GROUP,
        "groups": cut.groups,
        "groups_range": next_power_of_two(cut.groups),
        "list": LIST,
        "row_words": cut.row_words,
        "keyed": capacity > 0,
        "capacity": capacity,
        "words": [(name.upper(), args.offset(name)) for name in SAMPLING_FIELDS],
    }
