"""Owns how several quantised matrices lie in a checkpoint: a stack, rows of one, or one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from kernelgen.core.errors import UnsupportedError, UsageError
from kernelgen.formats.announcement import Scheme
from kernelgen.formats.format import WHOLE, WeightFormat, weight_format
from kernelgen.formats.packing import PACKINGS, Packing
from kernelgen.formats.stored import (
    EXPERT,
    PLAIN,
    FileTensor,
    Header,
    StoredMatrix,
    check_sizes,
    online_matrix,
    stored_matrix,
)

_BY_ROWS = ("bytes", "signed", "nibbles", "stream")
_ENDS = ("_packed", "_blocks", "_scale", "_scale_inv", "_scales")


def stored_experts(
    module: str, count: int, n: int, k: int, scheme: Scheme, header: Header | None
) -> StoredMatrix:
    """A stack whose matrices have tensors of their own; `module` holds `{expert}`.

    `UnsupportedError` where the header shows them stored in different ways.
    """
    told = count if header is not None else 1  # without a header all are what the first one is
    found = [
        stored_matrix(module.replace(EXPERT, str(e)), n, k, scheme, header) for e in range(told)
    ]
    first = found[0]
    for number, one in enumerate(found):
        same = one.kind == first.kind and one.packing == first.packing
        if not same or [t.shape for t in one.tensors] != [t.shape for t in first.tensors]:
            raise UnsupportedError(
                f"{module}: experts 0 and {number} are stored in different ways",
                allowed="one format for all experts of a layer",
            )
    named = module.replace(EXPERT, "0")
    tensors = tuple(replace(t, name=module + t.name[len(named) :]) for t in first.tensors)
    return replace(first, tensors=tensors, stack=count, each=True)


def online_experts(module: str, count: int, n: int, k: int, kind: WeightFormat) -> StoredMatrix:
    """The same of plain tensors that are quantised when they are loaded."""
    return replace(online_matrix(module, n, k, kind), stack=count, each=True)


def stack_looks_quantised(tensor: str, header: Header) -> bool:
    """Whether the header has what only a quantised tensor of several matrices has."""
    if tensor in header:
        return header[tensor][0] not in PLAIN
    return any(_named(tensor, f"weight{end}", header) in header for end in _ENDS)


def stored_part(
    tensor: str,
    shape: tuple[int, ...],
    take: tuple[int, int, int] | None,
    scheme: Scheme,
    header: Header | None,
) -> StoredMatrix:
    """A parameter `shape` = `[N, K]` or `[E, N, K]` that lies with others in the quantised tensor
    called `tensor` where it is plain, or is a stack of matrices. `UnsupportedError` where rows of
    it cannot be read by themselves.
    """
    *stack, n, k = shape
    kind, packing = weight_format(scheme.format), PACKINGS[scheme.packing]
    period = take[2] if take is not None else n
    if header is not None:
        packing = _as_named(tensor, packing, header)
        kind = _as_counted(tensor, kind, packing, prod(stack), period, header)
    check_sizes(tensor, n, k, kind, packing)
    _check_rows(tensor, n, kind, packing, take)
    made = [
        replace(t, name=_named(tensor, t.name, header))
        for t in _tensors((*stack, period), k, kind, packing)
    ]
    tensors = tuple(replace(t, shape=_spelled(t, header)) for t in made)
    return StoredMatrix(kind, packing, n, k, tensors, prod(stack), take)


def _named(tensor: str, suffix: str, header: Header | None) -> str:
    """`experts.gate_up_proj` → `experts.gate_up_proj_scale`, or `…_weight_scale` where the header
    has that; `linear.weight` → `linear.weight_scale`."""
    if tensor.endswith(".weight"):
        return f"{tensor.removesuffix('weight')}{suffix}"
    longer = f"{tensor}_{suffix}"
    if header is not None and longer in header:
        return longer
    return f"{tensor}{suffix.removeprefix('weight')}"


def _as_named(tensor: str, packing: Packing, header: Header) -> Packing:
    """The packing of the same arrangement whose scales the header has."""
    for other in (packing, *PACKINGS.values()):
        same = other.arrangement == packing.arrangement and other.factor == packing.factor
        named = [_named(tensor, part, header) in header for part in (other.codes, other.scale)]
        if same and all(named):
            return other
    name = _named(tensor, packing.scale, header)
    raise UsageError(f"{tensor} is quantised", where=name, allowed="a tensor: missing")


def _as_counted(
    tensor: str, kind: WeightFormat, packing: Packing, matrices: int, period: int, header: Header
) -> WeightFormat:
    """FP8 with one scale a matrix or one a row, by their number."""
    if kind.name not in ("fp8_tensor", "fp8_channel"):
        return kind
    count = prod(header[_named(tensor, packing.scale, header)][1])
    return weight_format("fp8_tensor" if count == matrices else "fp8_channel")


def _check_rows(
    tensor: str,
    n: int,
    kind: WeightFormat,
    packing: Packing,
    take: tuple[int, int, int] | None,
) -> None:
    problem = ""
    if packing.arrangement not in _BY_ROWS or packing.transposed or kind.zero:
        problem = "rows of several matrices lie in one tensor of that packing"
    elif take is not None and take[1] != n:
        problem = f"its rows take turns with others, {take[1]} at a time"
    elif take is not None and kind.rows > 1 and (take[0] % kind.rows or take[2] % kind.rows):
        problem = f"rows {take[0]} to {sum(take[:2])} of it begin or end in a block of {kind.rows}"
    if problem:
        where = f"{tensor} as {kind} ({packing.name})"
        raise UnsupportedError(problem, where=where, allowed="a tensor for each matrix")


def _tensors(
    axes: tuple[int, ...], k: int, kind: WeightFormat, packing: Packing
) -> Iterator[FileTensor]:
    """Names without the module; `axes` are those in front of K."""
    *stack, rows = axes
    columns = {"nibbles": k // 2, "stream": -(-k * kind.code.bits // 32)}
    codes = (*axes, columns.get(packing.arrangement, k))
    yield FileTensor("codes", packing.codes, codes, packing.dtype)
    scale = (*stack, 1 if kind.rows == WHOLE else -(-rows // kind.rows), kind.groups(k))
    yield FileTensor("scale", packing.scale, scale, kind.scale.safetensors)
    if kind.row_factor:
        yield FileTensor("factor", packing.factor, (*stack, 1), ("F32",))


def _spelled(tensor: FileTensor, header: Header | None) -> tuple[int, ...]:
    """The header's shape where it has the same numbers: `[E]`, `[E, N, K/32, 16]`, …"""
    if header is None or tensor.name not in header:
        return tensor.shape
    shape = header[tensor.name][1]
    return shape if prod(shape) == prod(tensor.shape) else tensor.shape
