"""Owns making the bound bytes of a packed matrix: its tensors, or a plain one, block by block."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch.nn.functional import pad

from ..artifact.manifest import Packed, Weight, packed_parts, packed_sections
from ..errors import WeightsError, shown
from .blocks import PANEL, Read
from .checkpoint import TensorSource
from .codes import unpack_awq, unpack_nibbles, unpack_stream
from .quantise import Parts, needs_amax, quantise_rows

UNIT = 128
"""rows of a block come in multiples of it: whole panels and whole blocks of scales"""
_CHUNK = 32
_LARGEST_E8M0 = 134
_FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Elements of a word, from the lowest code up: even ones in the lower half.
_WORD = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}


def packed_reads(
    packed: Packed, names: Mapping[str, object], block_bytes: int
) -> Iterator[tuple[str, Read]]:
    """Yield (part, read) in the order that `fill_packed` reads them.

    `names`: the tensors that there are. Codes come in blocks of rows unless they are transposed.
    Of a stack each matrix comes by itself.
    """
    if packed.each:
        for one in packed.alone:
            yield from packed_reads(one, names, block_bytes)
        return
    if packed.stack > 1 or packed.take is not None:
        for matrix in range(packed.stack):
            yield from _reads_of(packed, matrix, block_bytes)
        return
    shapes = packed_parts(packed)
    # Codes are worked on as bytes, plain numbers as float32.
    each = packed.cols if "codes" in shapes else 4 * packed.cols
    step = max(UNIT, block_bytes // each // UNIT * UNIT)
    for part, (rows, cols) in shapes.items():
        name = packed.tensors[part]
        if part == "order" and name not in names:
            continue
        whole = part not in ("codes", "weight") or _is_transposed(packed)
        again = part == "weight" and needs_amax(packed)
        for what in (["amax"] if again else []) + [part]:
            size = rows if whole else step
            for first in range(0, rows, size):
                yield what, Read(name, first, min(size, rows - first), cols)


def _reads_of(packed: Packed, matrix: int, block_bytes: int) -> Iterator[tuple[str, Read]]:
    """Yield the reads of one matrix of a stack, or of one that lies among others."""
    step = max(UNIT, block_bytes // (4 * packed.cols) // UNIT * UNIT)
    first, count, period = packed.take or (0, packed.rows, packed.rows)
    if packed.packing is not None:
        for part, (rows, cols) in packed_parts(packed).items():
            each = rows // packed.stack  # of a matrix in the tensor
            if part == "codes":
                for done in range(0, packed.rows, step):
                    at = matrix * period + first + done
                    yield part, Read(packed.tensors[part], at, min(step, packed.rows - done), cols)
            elif part == "scale" and packed.scale_rows:
                at, size = matrix * each + first // packed.scale_rows, packed.scale_shape[0]
                yield part, Read(packed.tensors[part], at, size, cols)
            else:
                yield part, Read(packed.tensors[part], matrix, 1, cols)
        return
    name, run = packed.tensors["weight"], min(count, packed.rows)
    for what in ("amax", "weight") if needs_amax(packed) else ("weight",):
        for row in range(matrix * packed.rows, (matrix + 1) * packed.rows, run):
            at = row // count * period + first + row % count
            for done in range(0, run, step):
                yield what, Read(name, at + done, min(step, run - done), packed.cols)


def fill_packed(weight: Weight, source: TensorSource, out: torch.Tensor, block_bytes: int) -> None:
    """Write a packed matrix (zeroed before) from `source`, whose rows lie on the device of `out`.

    Raises WeightsError for scales that are no positive numbers, and for columns out of order.
    """
    packed = weight.packed
    assert packed is not None
    size = len(out) // packed.stack
    outs = [out[matrix * size : (matrix + 1) * size] for matrix in range(packed.stack)]
    if packed.each:
        for one, mine in zip(packed.alone, outs, strict=True):
            fill_packed(replace(weight, packed=one), source, mine, block_bytes)
    elif packed.stack > 1 or packed.take is not None:
        for matrix, mine in enumerate(outs):
            _fill_matrix(weight, source, mine, _reads_of(packed, matrix, block_bytes))
    else:
        _fill_matrix(weight, source, out, packed_reads(packed, source.entries, block_bytes))


def _fill_matrix(
    weight: Weight, source: TensorSource, out: torch.Tensor, reads: Iterator[tuple[str, Read]]
) -> None:
    """Write one matrix from what is read of it: companions before codes."""
    packed, held, amax, row = weight.packed, dict[str, torch.Tensor](), 0.0, 0
    assert packed is not None
    for part, read in reads:
        rows = source.rows(read.tensor, read.first, read.count, read.cols)
        if part == "amax":
            amax = max(amax, float(rows.abs().amax()))
        elif part == "weight":
            _write(weight, out, row, quantise_rows(packed, rows, amax))
            row += len(rows)
        elif part == "codes":
            codes = _codes(packed, rows)
            _write(weight, out, row, _block(packed, held, row, codes))
            row += len(codes)
        else:
            held[part] = _companion(packed, part, rows, read.tensor)
            if part == "scale" and weight.layout == "rows":
                _check_largest(packed, held[part], read.tensor)


def _is_transposed(packed: Packed) -> bool:
    return packed.packing is not None and packed.packing.transposed


def _codes(packed: Packed, rows: torch.Tensor) -> torch.Tensor:
    """Return codes uint8 [n, K] of rows as they are stored; of a transposed tensor all of them."""
    packing = packed.packing
    assert packing is not None
    if packing.arrangement == "awq":
        return unpack_awq(rows, packed.rows).t()
    if packing.arrangement == "stream":
        return unpack_stream(rows.t() if packing.transposed else rows, packed.bits, packed.cols)
    octets = rows.view(torch.uint8)
    if packing.arrangement == "nibbles":
        return unpack_nibbles(octets)
    return octets ^ 0x80 if packing.arrangement == "signed" else octets


def _companion(packed: Packed, part: str, rows: torch.Tensor, name: str) -> torch.Tensor:
    """Return scales, zero points or factors as they lie on the device, checked; a copy."""
    packing = packed.packing
    assert packing is not None
    if part == "order":
        wanted = torch.arange(packed.cols, device=rows.device) // (packed.group or packed.cols)
        if not torch.equal(rows.flatten().to(wanted.dtype), wanted):
            raise WeightsError(
                f"{shown(name)}: columns were reordered by their activations; "
                "quantise the model with desc_act = false"
            )
        return wanted
    if part == "zero":
        if packing.arrangement == "awq":
            zero = unpack_awq(rows, packed.rows).t()
        else:
            along = rows if packing.transposed else rows.t()
            zero = unpack_stream(along, packed.bits, packed.rows).t()
        return (zero + packing.zero_bias).contiguous()
    if part == "factor":
        factor = rows.float().flatten()
        factor = factor.reciprocal() if packing.factor_divides else factor.clone()
        _check_positive(factor[:, None], name)
        return factor.expand(packed.rows)
    scale = rows.t() if packing.transposed else rows
    if packed.scale in _FLOATS:
        scale = scale.to(_FLOATS[packed.scale], copy=True)
        _check_positive(scale.float(), name)
    else:
        octets = scale.view(torch.uint8).clone()
        values = _decoded(packed.scale, octets)
        _check_positive(values, name)
        scale = octets
    return scale.contiguous()


def _decoded(scale: str, octets: torch.Tensor) -> torch.Tensor:
    if scale == "e4m3":
        return octets.view(torch.float8_e4m3fn).float()
    return torch.where(octets == 255, torch.nan, 1.0)


def _check_largest(packed: Packed, scale: torch.Tensor, name: str) -> None:
    """A GPU's kernels put what codes are less than their bits into the scale: it ends at 2^7."""
    if packed.scale == "e8m0" and bool((scale > _LARGEST_E8M0).any()):
        power = int(scale.max()) - 127
        raise WeightsError(f"{shown(name)}: a scale is 2^{power}, which kernels of a GPU lack room "
                           f"for; weights of that size are none")  # fmt: skip


def _check_positive(values: torch.Tensor, name: str) -> None:
    wrong = ~(values.isfinite() & (values > 0))
    if bool(wrong.any()):
        row, column = (int(i) for i in wrong.nonzero()[0])
        raise WeightsError(
            f"{shown(name)}: scale [{row}, {column}] is {float(values[row, column])}; "
            "scales must be finite and above zero"
        )


def _block(
    packed: Packed, held: Mapping[str, torch.Tensor], first: int, codes: torch.Tensor
) -> Parts:
    """Return the parts of rows from `first` on."""
    count, each = len(codes), packed.scale_rows
    scale = held["scale"]
    if each:
        scale = scale[first // each : -(-(first + count) // each)]
    rows = slice(first, first + count)
    zero = held["zero"][rows] if packed.zero else None
    factor = held["factor"][rows] if packed.factor else None
    return Parts(codes, scale, zero, factor)


def _write(weight: Weight, out: torch.Tensor, first: int, parts: Parts) -> None:
    packed = weight.packed
    assert packed is not None
    codes = parts.codes
    if packed.code.startswith("int") and not packed.zero:
        # Kernels know whole nibbles and bytes: the offset of zero grows with the width.
        codes = codes + ((1 << (packed.stored_bits - 1)) - (1 << (packed.bits - 1)))
    if weight.layout == "rows":
        _write_rows(packed, out, first, codes, parts)
    else:
        _write_panels(packed, out, first, codes, parts)


def _write_rows(
    packed: Packed, out: torch.Tensor, first: int, codes: torch.Tensor, parts: Parts
) -> None:
    """Sections one after the other: codes, scales, zero points, factors."""
    starts, n = packed_sections(packed), len(codes)
    codes = pad(codes, (0, -codes.shape[1] % _CHUNK))
    if packed.stored_bits == 4:
        words = codes.reshape(n, -1, 4, 4, 2).permute(0, 1, 3, 4, 2)
        codes = (words[..., ::2] | (words[..., 1::2] << 4)).flatten(1)
    _put(out, starts[0], first, codes)
    if packed.scale_rows == 0:
        _put(out, starts[1], first, parts.scale.expand(n, packed.groups).contiguous())
    else:
        _put(out, starts[1], first // packed.scale_rows, parts.scale)
    if parts.zero is not None:
        _put(out, starts[2], first, parts.zero)
    if parts.factor is not None:
        _put(out, starts[3], first, parts.factor[:, None])


def _put(out: torch.Tensor, start: int, row: int, rows: torch.Tensor) -> None:
    # Flat first: a column of one group counts as contiguous, whatever stride its last axis has.
    octets = rows.contiguous().flatten().view(torch.uint8)
    at = start + row * (octets.numel() // len(rows))
    out[at : at + octets.numel()] = octets


def _write_panels(
    packed: Packed, out: torch.Tensor, first: int, codes: torch.Tensor, parts: Parts
) -> None:
    """Group by group scales, zero points and words of 32 outputs; factors at the end."""
    n, more = len(codes), -len(codes) % PANEL
    panels, groups = (n + more) // PANEL, packed.groups
    here = out[first // PANEL : first // PANEL + panels]
    scale = parts.scale.repeat_interleave(packed.scale_rows or n, dim=0)[:n]
    columns = [_lanes(pad(scale, (0, 0, 0, more)), panels)]
    if parts.zero is not None:
        columns.append(_lanes(pad(parts.zero, (0, 0, 0, more)), panels))
    codes = pad(codes, (0, packed.padded - codes.shape[1], 0, more))
    words = codes.reshape(panels, PANEL, groups, -1, 32 // packed.stored_bits)
    words = words[..., torch.tensor(_WORD[packed.stored_bits], device=codes.device)]
    if packed.stored_bits == 4:
        words = words[..., ::2] | (words[..., 1::2] << 4)
    columns.append(words.permute(0, 2, 3, 1, 4).reshape(panels, groups, -1))
    body = torch.cat(columns, dim=2).flatten(1)
    here[:, : body.shape[1]] = body
    if parts.factor is not None:
        factor = pad(parts.factor, (0, more)).view(panels, PANEL)
        here[:, body.shape[1] :] = factor.contiguous().view(torch.uint8)


def _lanes(columns: torch.Tensor, panels: int) -> torch.Tensor:
    """Return [panels·32, groups] as bytes [panels, groups, …], lanes side by side."""
    turned = columns.view(panels, PANEL, -1).transpose(1, 2).contiguous()
    return turned.view(torch.uint8)
