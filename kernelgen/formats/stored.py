"""Owns how one matrix lies in a checkpoint: its tensors, checked against the header where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from kernelgen.core.errors import UnsupportedError, UsageError
from kernelgen.formats.announcement import Scheme
from kernelgen.formats.format import WHOLE, WeightFormat, integer_format, weight_format
from kernelgen.formats.packing import PACKINGS, Packing

Header = Mapping[str, tuple[str, tuple[int, ...]]]
"""tensor → safetensors type and shape"""
EXPERT = "{expert}"
"""in the name of a tensor: the number of the matrix in its stack"""
PLAIN = ("BF16", "F16", "F32")
_SUFFIXES = ("weight_scale", "weight_scale_inv", "scale", "scales", "weight_packed", "qweight")


@dataclass(frozen=True)
class FileTensor:
    """One tensor of the checkpoint; `part` is what it is of the matrix (`codes`, `scale`, …)."""

    part: str
    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class StoredMatrix:
    """A quantised matrix `[n, k]`: its format, and the tensors it is read or made from.

    `packing` None: one plain tensor (`weight`), quantised when it is loaded. It may be a `stack` of
    matrices, each with scales of its own; `take` as in `TensorRule`: their rows among those of the
    tensors. `each`: every matrix of the stack has tensors of its own, whose names hold `{expert}`.
    """

    kind: WeightFormat
    packing: Packing | None
    n: int
    k: int
    tensors: tuple[FileTensor, ...]
    stack: int = 1
    take: tuple[int, int, int] | None = None
    each: bool = False

    @property
    def names(self) -> dict[str, str]:
        """Part → tensor."""
        return {t.part: t.name for t in self.tensors}

    @property
    def files(self) -> tuple[FileTensor, ...]:
        """Every tensor of the checkpoint by its own name."""
        if not self.each:
            return self.tensors
        return tuple(
            replace(t, name=t.name.replace(EXPERT, str(e)))
            for e in range(self.stack)
            for t in self.tensors
        )


def looks_quantised(module: str, header: Header) -> bool:
    """Whether the header has what only a quantised matrix has."""
    tag = header.get(f"{module}.weight", ("", ()))[0]
    plain = tag in PLAIN and not any(f"{module}.{s}" in header for s in _SUFFIXES)
    return not plain and any(f"{module}.{s}" in header for s in ("weight", *_SUFFIXES))


def stored_matrix(
    module: str, n: int, k: int, scheme: Scheme, header: Header | None
) -> StoredMatrix:
    """The matrix `module.weight` as a scheme says, and as the header makes it precise: suffixes,
    granularity and types of the scales. `UnsupportedError` where the sizes do not fit.
    """
    kind, packing = weight_format(scheme.format), PACKINGS[scheme.packing]
    if header is not None:
        packing = _suffix(module, packing, header)
        kind = _as_stored(module, n, k, kind, packing, header)
    check_sizes(module, n, k, kind, packing)
    tensors = [
        FileTensor(t.part, f"{module}.{t.name}", _spelled(module, t, header), t.dtypes, t.optional)
        for t in _parts(n, k, kind, packing)
    ]
    return StoredMatrix(kind, packing, n, k, tuple(tensors))


def online_matrix(module: str, n: int, k: int, kind: WeightFormat) -> StoredMatrix:
    """A plain matrix that is quantised when it is loaded."""
    tensor = FileTensor("weight", f"{module}.weight", (n, k), PLAIN)
    return StoredMatrix(kind, None, n, k, (tensor,))


def online_part(
    tensor: str, shape: tuple[int, ...], take: tuple[int, int, int] | None, kind: WeightFormat
) -> StoredMatrix:
    """The same of a parameter `shape` = `[N, K]` or `[E, N, K]` that is a part of a plain tensor,
    or a stack of matrices; the tensor has the parameter's axes.
    """
    *stack, n, k = shape
    _, count, period = take or (0, n, n)
    whole = FileTensor("weight", tensor, (*stack, n // count * period, k), PLAIN)
    return StoredMatrix(kind, None, n, k, (whole,), prod(stack), take)


def _suffix(module: str, packing: Packing, header: Header) -> Packing:
    """FP8 scales have three names; the header says which."""
    if packing.arrangement == "bytes":
        for name in ("float8", "float8_inv", "float8_short"):
            if f"{module}.{PACKINGS[name].scale}" in header:
                return PACKINGS[name]
    return packing


def _as_stored(
    module: str, n: int, k: int, kind: WeightFormat, packing: Packing, header: Header
) -> WeightFormat:
    """FP8 with one scale or one a row, whatever was announced; integers by the scale's type."""
    name = f"{module}.{packing.scale}"
    if name not in header:
        raise UsageError(
            f"{module} is quantised as {kind}", where=name, allowed="a tensor: missing"
        )
    tag, shape = header[name]
    if kind.name in ("fp8_tensor", "fp8_channel"):
        count = 1
        for size in shape:
            count *= size
        return weight_format("fp8_channel" if count == n and n > 1 else "fp8_tensor")
    if kind.code.is_integer and kind.group != WHOLE and tag in ("F16", "BF16"):
        half = tag == "F16"
        return weight_format(integer_format(kind.code.bits, kind.group, half=half, zero=kind.zero))
    return kind


def check_sizes(module: str, n: int, k: int, kind: WeightFormat, packing: Packing) -> None:
    """`UnsupportedError` where sizes do not fill what codes and scales share."""
    bits, problem = kind.code.bits, ""
    if packing.arrangement == "nibbles" and k % 2:
        problem = f"K = {k} is odd: two codes share a byte"
    elif packing.arrangement == "stream" and packing.transposed and (k * bits) % 32:
        problem = f"K = {k} does not fill int32 words of {bits}-bit codes"
    elif packing.arrangement == "awq" and n % 8:
        problem = f"N = {n} does not fill words of eight columns"
    elif kind.zero and packing.transposed and (n * bits) % 32:
        problem = f"N = {n} does not fill int32 words of {bits}-bit zero points"
    elif kind.group != WHOLE and k % kind.group and kind.rows == 1:
        problem = f"K = {k} is no multiple of the group of {kind.group}"
    if problem:
        raise UnsupportedError(problem, where=f"{module} as {kind} ({packing.name})")


def _parts(n: int, k: int, kind: WeightFormat, packing: Packing) -> list[FileTensor]:
    """Names without the module."""
    bits, groups = kind.code.bits, kind.groups(k)
    words_k, words_n = -(-k * bits // 32), -(-n * bits // 32)
    codes = {
        "bytes": (n, k),
        "signed": (n, k),
        "nibbles": (n, k // 2),
        "stream": (words_k, n) if packing.transposed else (n, words_k),
        "awq": (k, n // 8),
    }[packing.arrangement]
    scale = kind.scale_shape(n, k)
    found = [
        FileTensor("codes", packing.codes, codes, packing.dtype),
        FileTensor(
            "scale",
            packing.scale,
            scale[::-1] if packing.transposed else scale,
            kind.scale.safetensors,
        ),
    ]
    if kind.zero:
        zero = (groups, words_n) if packing.transposed else (words_n, groups)
        found.append(FileTensor("zero", packing.zero, zero, ("I32",)))
    if kind.row_factor:
        found.append(FileTensor("factor", packing.factor, (1,), ("F32",)))
    if packing.order:
        found.append(FileTensor("order", packing.order, (k,), ("I32", "I64"), optional=True))
    return found


def _spelled(module: str, tensor: FileTensor, header: Header | None) -> tuple[int, ...]:
    """The header's shape where it differs in ones only: scales are `()`, `[N]`, `[N, 1]`, …"""
    name = f"{module}.{tensor.name}"
    if header is None or name not in header or tensor.part not in ("scale", "factor"):
        return tensor.shape
    shape = header[name][1]
    same = [d for d in shape if d != 1] == [d for d in tensor.shape if d != 1]
    return shape if same else tensor.shape
