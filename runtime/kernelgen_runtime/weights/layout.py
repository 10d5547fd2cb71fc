"""Owns the load-time transforms: parts → interleave → rows or panels, in bounded memory."""

from collections.abc import Iterator, Mapping

import torch
from torch.nn.functional import pad

from ..artifact.manifest import Weight
from ..buffers import DTYPES
from .blocks import BLOCK_BYTES, PANEL, Block, Read, blocks
from .checkpoint import TensorSource
from .packed import fill_packed, packed_reads
from .scalars import fill_scalars, scalar_reads


def reads(
    weight: Weight, names: Mapping[str, object], block_bytes: int = BLOCK_BYTES
) -> Iterator[Read]:
    """Yield everything that `fill` reads of a weight, in order; `names`: tensors there are."""
    if weight.packed is not None:
        yield from (read for _, read in packed_reads(weight.packed, names, block_bytes))
        return
    yield from (read for read in scalar_reads(weight, names) if read is not None)
    for block in blocks(weight, block_bytes):
        yield from block.reads


def fill(
    weight: Weight, source: TensorSource, out: torch.Tensor, block_bytes: int = BLOCK_BYTES
) -> None:
    """Write `weight` (shape and dtype of the manifest, zeroed before) from `source` into `out`.

    The source's rows lie on the device of `out`, and so does all the work.
    """
    if weight.rope is not None:
        _fill_rope(weight, out)
        return
    if weight.packed is not None:
        fill_packed(weight, source, out, block_bytes)
        return
    if weight.scalars:
        fill_scalars(weight, source, out)
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
