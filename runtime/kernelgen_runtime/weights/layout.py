"""Owns the load-time transforms: parts → interleave → rows or panels, in bounded memory."""

from collections.abc import Iterator

import torch
from torch.nn.functional import pad

from ..artifact.manifest import Weight
from ..buffers import DTYPES
from .checkpoint import TensorSource

BLOCK_BYTES = 8 << 20
PANEL = 32


def fill(weight: Weight, source: TensorSource, out: torch.Tensor) -> None:
    """Write `weight` (shape and dtype of the manifest, zeroed before) from `source` into `out`."""
    if weight.rope is not None:
        _fill_rope(weight, out)
        return
    rows, cols = weight.matrix_shape
    if weight.layout == "rows":
        matrix = out.view(rows, cols)
        for first, block in _row_blocks(weight, source):
            matrix[first : first + len(block)].copy_(block)
        return
    panels = _lanes(out)
    for first, block in _row_blocks(weight, source):
        _write_panels(panels, first, _pairs(block, out.dtype))


def _row_blocks(weight: Weight, source: TensorSource) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (first row, rows [n, cols] in some dtype) of the matrix that the parts make."""
    rows, cols = weight.parts[0].rows, weight.parts[0].cols
    step = max(PANEL, BLOCK_BYTES // (4 * cols) // PANEL * PANEL)
    if not weight.interleave:
        offset = 0
        for part in weight.parts:
            for first in range(0, part.rows, step):
                count = min(step, part.rows - first)
                yield offset + first, source.rows(part.tensor, first, count, cols)
            offset += part.rows
        return
    unit, ways = weight.interleave, len(weight.parts)
    turns = max(1, step // (unit * ways))
    for first in range(0, rows, turns * unit):
        count = min(turns * unit, rows - first)
        whole, rest = divmod(count, unit)
        block = torch.zeros(whole + (rest > 0), ways, unit, cols, dtype=DTYPES[weight.dtype])
        for way, part in enumerate(weight.parts):
            taken = source.rows(part.tensor, first, count, cols)
            block[:whole, way] = taken[: whole * unit].view(whole, unit, cols).to(block.dtype)
            if rest:
                block[whole, way, :rest] = taken[whole * unit :].to(block.dtype)
        yield first * ways, block.view(-1, cols)


def _pairs(block: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast and pad K; two bfloat16 become one int32, so that a panel is a plain transpose."""
    block = block.to(dtype)
    if block.shape[1] % 2:
        block = pad(block, (0, 1))
    return block.view(torch.int32)


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
            # NumPy transposes 2-3 times faster than a strided copy_ with several threads.
            panels[panel : panel + whole].numpy()[:] = rows.numpy().transpose(0, 2, 1)
            done += whole * PANEL
        else:
            take = min(PANEL - lane, len(block) - done)
            panels[panel, :, lane : lane + take] = block[done : done + take].t()
            done += take


def _fill_rope(weight: Weight, out: torch.Tensor) -> None:
    assert weight.rope is not None
    inv_freq = torch.tensor(weight.rope.inv_freq, dtype=torch.float64)
    step = max(1, BLOCK_BYTES // (32 * max(1, len(inv_freq))))
    for first in range(0, weight.rope.positions, step):
        stop = min(first + step, weight.rope.positions)
        angle = torch.arange(first, stop, dtype=torch.float64)[:, None] * inv_freq
        out[first:stop, 0] = angle.cos() * weight.rope.scale
        out[first:stop, 1] = angle.sin() * weight.rope.scale
