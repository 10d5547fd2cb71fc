"""Owns which elements of a weight's tensors make up a block of it: rows, columns, experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

EXPERT = "{expert}"
"""in a tensor's name: the number of the matrix in its stack"""
Range = tuple[int, int]
Box = tuple[Range, ...]
Found = tuple[str, tuple[int, ...], Box, tuple[int, ...], str]
"""tensor, the shape it is seen as, the box in it, where that lies on the rank, part"""


def plain_slices(
    parts: Sequence[Mapping[str, Any]],
    stack: int,
    n: int,
    box: tuple[Range, Range, Range],
) -> Iterator[Found]:
    """The slices of a plain weight: `stack` matrices of `n` rows, of which `box` has experts, rows
    and columns. ValueError for parts that take turns.
    """
    experts, rows, columns = box
    begun = 0  # rows of the parts before
    for part in parts:
        first, count, period = part.get("take") or (0, part["rows"], part["rows"])
        tensor = part["tensor"]
        if stack > 1:
            number, many = begun // n, part["rows"] // n
            if part.get("take") is None:
                first, count, period = 0, n, n
            here = _common(experts, (number, number + many))
            if here is not None:
                inner = ((first + rows[0], first + rows[1]), columns)
                whole = (here[0] - number, here[1] - number)
                at = (here[0] - experts[0], 0, 0)
                lone = many == 1
                view = (period, part["cols"]) if lone else (many, period, part["cols"])
                yield tensor, view, inner if lone else (whole, *inner), at, ""
        else:
            if count != part["rows"]:
                raise ValueError(f"{tensor}: rows are taken in turns, which no slice describes")
            lines = _common(rows, (begun, begun + part["rows"]))
            if lines is not None:
                taken = (first + lines[0] - begun, first + lines[1] - begun)
                begin = lines[0] - rows[0]
                if part["cols"] == 1:  # a vector, whatever axes of one its tensor has
                    yield tensor, (period,), (taken,), (begin,), ""
                else:
                    yield tensor, (period, part["cols"]), (taken, columns), (begin, 0), ""
        begun += part["rows"]


def packed_slices(
    packed: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    box: tuple[Range, Range, Range],
) -> Iterator[Found]:
    """The slices of every tensor of a packed matrix, or of a stack of them, of which `box` has
    experts, rows and columns.

    ValueError where a range ends inside a block of scales or a word of codes.
    """
    experts, rows, columns = box
    stack = int(packed.get("stack", 1))
    first, _, period = packed.get("take") or (0, 0, int(packed["rows"]))
    lines, sizes = (first + rows[0], first + rows[1]), {"n": period, "k": int(packed["cols"])}
    for part, tensor in packed["tensors"].items():
        if part == "order" and tensor.replace(EXPERT, str(experts[0])) not in shapes:
            continue
        view, found = _box(packed, part, sizes, {"n": lines, "k": columns}, tensor)
        if packed.get("each"):
            for e in range(*experts):
                at = (e - experts[0], *(0,) * len(view))
                yield tensor.replace(EXPERT, str(e)), view, found, at, part
        elif stack > 1:
            yield tensor, (stack, *view), (experts, *found), (0,) * (1 + len(view)), part
        else:
            yield tensor, view, found, (0,) * len(view), part


def _box(
    packed: Mapping[str, Any],
    part: str,
    sizes: Mapping[str, int],
    ranges: Mapping[str, Range],
    tensor: str,
) -> tuple[tuple[int, ...], Box]:
    """How a part of one matrix is seen, and the entries in it that hold the ranges."""
    view, box = [], []
    for axis, bits, unit in _packed_axes(packed, part):
        size = -(-sizes[axis] * bits // unit) if unit else 1
        view.append(size)
        box.append(_stored(ranges[axis], sizes[axis], bits, unit, size, f"{tensor} ({axis})"))
    return tuple(view), tuple(box)


def _packed_axes(packed: Mapping[str, Any], part: str) -> list[tuple[str, int, int]]:
    """Axes of a part as (n or k, bits, unit): element i of the axis lies at i·bits ÷ unit; a unit
    of 0 says that one entry holds for all of it.
    """
    packing, scale = packed["packing"], packed["scale"]
    bits = {"e2m1": 4, "e4m3": 8}.get(packed["code"]) or int(str(packed["code"])[3:])
    if part == "weight":
        return [("n", 1, 1), ("k", 1, 1)]
    arrangement, turned = packing["arrangement"], bool(packing["transposed"])
    group = ("k", 1, scale["group"])
    if part == "codes":
        if arrangement == "awq":
            return [("k", 1, 1), ("n", 4, 32)]
        words = {"nibbles": ("k", 4, 8), "stream": ("k", bits, 32)}.get(arrangement, ("k", 1, 1))
        return [words, ("n", 1, 1)] if turned else [("n", 1, 1), words]
    if part == "scale":
        lines = ("n", 1, scale["rows"])
        return [group, lines] if turned else [lines, group]
    if part == "zero":
        words = ("n", bits, 32)
        return [group, words] if turned else [words, group]
    return [("k", 1, 1)] if part == "order" else [("n", 1, 0)]


def _stored(wanted: Range, size: int, bits: int, unit: int, entries: int, what: str) -> Range:
    """The entries that hold a range of an axis of `size` elements."""
    if unit == 0:
        return 0, 1
    ends = []
    for end in wanted:
        if end == size:
            ends.append(entries)
        elif end * bits % unit:
            raise ValueError(f"{what}: a rank would end at {end}, inside of what belongs together")
        else:
            ends.append(end * bits // unit)
    return ends[0], ends[1]


def _common(a: Range, b: Range) -> Range | None:
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None
