"""Owns the load-time transforms: parts → interleave → rows or panels, in bounded memory."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from ..artifact.manifest import Part, Weight
from ..buffers import DTYPES
from .checkpoint import TensorSource

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
    if weight.rope is not None:
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
    length = part.rows // weight.stack if weight.layout == "panel" else part.rows
    return length if part.take is None else math.gcd(length, part.take[1])


def _tensor_row(part: Part, row: int) -> int:
    """Where a row of the part lies in its tensor."""
    if part.take is None:
        return row
    first, count, period = part.take
    return row // count * period + first + row % count


def fill(
    weight: Weight, source: TensorSource, out: torch.Tensor, block_bytes: int = BLOCK_BYTES
) -> None:
    """Write `weight` (shape and dtype of the manifest, zeroed before) from `source` into `out`.

    The source's rows lie on the device of `out`, and so does all the work.
    """
    if weight.rope is not None:
        _fill_rope(weight, out)
        return
    matrix = out.view(weight.matrix_shape) if weight.layout == "rows" else None
    for block in blocks(weight, block_bytes):
        rows = _rows(weight, block, source, out)
        if matrix is not None:
            matrix[block.row : block.row + len(rows)].copy_(rows)
        else:
            _write_panels(_lanes(out), _padded(weight, block.row), _pairs(rows, out.dtype))


def _rows(weight: Weight, block: Block, source: TensorSource, out: torch.Tensor) -> torch.Tensor:
    """Return the rows [n, cols] of a block, in some dtype; parts that take turns are mixed."""
    if not weight.interleave:
        (read,) = block.reads
        return source.rows(read.tensor, read.first, read.count, read.cols)
    unit, ways = weight.interleave, len(block.reads)
    whole, rest = divmod(block.reads[0].count, unit)
    shape = (whole + (rest > 0), ways, unit, block.reads[0].cols)
    mixed = torch.zeros(shape, dtype=DTYPES[weight.dtype], device=out.device)
    for way, read in enumerate(block.reads):
        taken = source.rows(read.tensor, read.first, read.count, read.cols)
        mixed[:whole, way] = taken[: whole * unit].view(whole, unit, read.cols).to(mixed.dtype)
        if rest:
            mixed[whole, way, :rest] = taken[whole * unit :].to(mixed.dtype)
    return mixed.view(-1, shape[-1])


def _pairs(block: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast and pad K; two bfloat16 become one int32, so that a panel is a plain transpose."""
    block = block.to(dtype)
    if block.shape[1] % 2:
        block = pad(block, (0, 1))
    return block.view(torch.int32)


def _padded(weight: Weight, row: int) -> int:
    """The row once every matrix of a stack fills whole panels."""
    if weight.stack == 1:
        return row
    rows = weight.matrix_shape[0] // weight.stack
    return row // rows * (-(-rows // PANEL) * PANEL) + row % rows


def _lanes(out: torch.Tensor) -> torch.Tensor:
    """View a panel buffer as int32 [panels, K words, 32]."""
    return out.view(torch.int32).view(out.shape[0], -1, PANEL)


def _write_panels(panels: torch.Tensor, first: int, block: torch.Tensor) -> None:
    """Put rows `block` [n, words] at row `first`; the parts of a weight need not be aligned."""
    done = 0
    while done < len(block):
        panel, lane = divmod(first + done, PANEL)
        whole = (len(block) - done) // PANEL
        if lane == 0 and whole:
            rows = block[done : done + whole * PANEL].view(whole, PANEL, -1)
            if panels.is_cpu:
                # NumPy transposes 2-3 times faster than a strided copy_ with several threads.
                panels[panel : panel + whole].numpy()[:] = rows.numpy().transpose(0, 2, 1)
            else:
                panels[panel : panel + whole].copy_(rows.transpose(1, 2))
            done += whole * PANEL
        else:
            take = min(PANEL - lane, len(block) - done)
            panels[panel, :, lane : lane + take] = block[done : done + take].t()
            done += take


def _fill_rope(weight: Weight, out: torch.Tensor) -> None:
    assert weight.rope is not None
    inv_freq = torch.tensor(weight.rope.inv_freq, dtype=torch.float64, device=out.device)
    step = max(1, BLOCK_BYTES // (32 * max(1, len(inv_freq))))
    for first in range(0, weight.rope.positions, step):
        stop = min(first + step, weight.rope.positions)
        positions = torch.arange(first, stop, dtype=torch.float64, device=out.device)
        angle = positions[:, None] * inv_freq
        out[first:stop, 0] = angle.cos() * weight.rope.scale
        out[first:stop, 1] = angle.sin() * weight.rope.scale
