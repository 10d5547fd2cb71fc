"""Owns the law by which ranks share a weight, and what a manifest says of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.pack.slice_parts import EXPERT, Range


@dataclass(frozen=True)
class Place:
    """A rank: number `tensor` of `tp`, number `expert` of `ep`."""

    tensor: int
    tp: int
    expert: int
    ep: int


@dataclass(frozen=True)
class Described:
    """A weight: `stack` matrices of `n` rows and `k` columns. `parts` are the plain tensors that it
    is made of, `packed` the ones of a quantised matrix; `cut` is how ranks share it.
    """

    n: int
    k: int
    stack: int
    parts: Sequence[Mapping[str, Any]]
    packed: Mapping[str, Any] | None
    cut: Mapping[str, Any] | None


def described(weight: Mapping[str, Any]) -> Described | None:
    """An entry of `weights`; None for a table that is computed."""
    source, cut = weight["source"], weight.get("cut")
    if isinstance(source, dict) and "packed" not in source:
        return None
    if not isinstance(source, dict):
        parts, stack = weight["parts"], int(weight.get("stack", 1))
        n = sum(part["rows"] for part in parts) // stack
        return Described(n, parts[0]["cols"], stack, parts, None, cut)
    packed = source["packed"]
    n, k, stack = packed["rows"], packed["cols"], int(packed.get("stack", 1))
    if packed["packing"] is not None:
        return Described(n, k, stack, (), packed, cut)
    # Plain tensors, quantised when they are loaded.
    if packed.get("each"):
        name = packed["tensors"]["weight"]
        alone = [
            {"tensor": name.replace(EXPERT, str(e)), "rows": n, "cols": k} for e in range(stack)
        ]
        return Described(n, k, stack, alone, None, cut)
    plain = {"tensor": packed["tensors"]["weight"], "rows": n * stack, "cols": k}
    take = {"take": packed["take"]} if "take" in packed else {}
    return Described(n, k, stack, (plain | take,), None, cut)


def shared(what: Described, place: Place) -> tuple[Range, Range, Range]:
    """Experts, rows and columns that a rank has. ValueError where there are none for it."""
    rows, columns, experts = (0, what.n), (0, what.k), (0, 1)
    if what.cut is not None:
        unit, groups, is_row = what.cut["unit"], what.cut["groups"], what.cut["kind"] == "row"
        along = what.k if is_row else what.n
        repeats = bool(what.cut["repeats"])
        found = cut_range(along, unit, groups, place.tp, place.tensor, repeats)
        if found[0] == found[1]:
            units = f"{groups} groups of {-(-along // unit) // groups} times {unit} elements"
            raise ValueError(f"{units} cannot be shared by {place.tp} ranks")
        rows, columns = (rows, found) if is_row else (found, columns)
    if what.stack > 1:
        experts = cut_range(what.stack, 1, what.stack, place.ep, place.expert)
        if experts[0] == experts[1]:
            raise ValueError(f"{what.stack} experts cannot be dealt to {place.ep} ranks")
    return experts, rows, columns


def cut_range(
    size: int, unit: int, groups: int, ranks: int, rank: int, repeats: bool = False
) -> Range:
    """Elements of an axis of `size` that a rank has; empty where there is none for it.

    The units lie in `groups` of equal length. Ranks get consecutive groups, the first ones one
    more where they must. More ranks than groups share each group, by the same rule; one of a
    single unit they all hold if it `repeats`.
    """
    units = -(-size // unit)
    each = -(-units // groups)
    if ranks <= groups:
        start, stop = (each * -(-groups * r // ranks) for r in (rank, rank + 1))
    elif ranks % groups:
        return 0, 0
    else:
        sharing = ranks // groups
        group, number = divmod(rank, sharing)
        ends = [-(-each * r // sharing) for r in (number, number + 1)]
        ends = [0, 1] if each == 1 and repeats else ends
        start, stop = (group * each + end for end in ends)
    return min(start * unit, size), min(stop * unit, size)
