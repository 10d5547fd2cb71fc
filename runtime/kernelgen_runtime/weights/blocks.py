"""Owns what is read of a checkpoint for one weight, block by block, in order."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..artifact.manifest import Part, Weight

BLOCK_BYTES = 8 << 20
PANEL = 32


@dataclass(frozen=True)
class Read:
    """Rows [first, first + count) of checkpoint tensor `tensor`, a matrix of `cols` columns."""

    tensor: str
    first: int
    count: int
    cols: int


@dataclass(frozen=True)
class Block:
    """What fills rows of the matrix from `row` on: one read, or one a part that takes turns."""

    row: int
    reads: tuple[Read, ...]


def blocks(weight: Weight, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield the blocks of `weight` in the order that `fill` reads them.

    A block has about `block_bytes` as float32. A computed table has none.
    """
    if weight.rope is not None or weight.scalars:
        return
    cols = weight.parts[0].cols
    step = max(PANEL, block_bytes // (4 * cols) // PANEL * PANEL)
    if weight.interleave:
        unit, ways = weight.interleave, len(weight.parts)
        rows, turn = weight.parts[0].rows, max(1, step // (unit * ways)) * unit
        for first in range(0, rows, turn):
            count = min(turn, rows - first)
            reads = tuple(Read(part.tensor, first, count, cols) for part in weight.parts)
            yield Block(first * ways, reads)
        return
    offset = 0
    for part in weight.parts:
        for run in range(0, part.rows, length := _run_rows(weight, part)):
            for first in range(run, run + length, step):
                count = min(step, run + length - first)
                read = Read(part.tensor, _tensor_row(part, first), count, cols)
                yield Block(offset + first, (read,))
        offset += part.rows


def _run_rows(weight: Weight, part: Part) -> int:
    """Rows of a part that lie together both in their tensor and in the buffer."""
    is_stack = weight.stack > 1 and weight.layout == "panel"
    length = weight.matrix_shape[0] // weight.stack if is_stack else part.rows
    return length if part.take is None else math.gcd(length, part.take[1])


def _tensor_row(part: Part, row: int) -> int:
    """Where a row of the part lies in its tensor."""
    if part.take is None:
        return row
    first, count, period = part.take
    return row // count * period + first + row % count
