"""Owns the slice map: what of which checkpoint tensor each rank of a parallel group gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from kernelgen.core.errors import ProblemList, UsageError, quote
from kernelgen.pack.slice_parts import Box, Range, packed_slices, plain_slices

MOST_RANKS = 1024


@dataclass(frozen=True)
class Slice:
    """Elements `box` of a tensor that is seen as `view` (its own shape, unless ones or equal rows
    are written otherwise); they lie from `at` on in what the rank has of it. `part` is what the
    tensor is of a packed matrix.
    """

    tensor: str
    view: tuple[int, ...]
    box: Box
    at: tuple[int, ...]
    part: str = ""

    @property
    def elements(self) -> int:
        """How many there are."""
        return prod(stop - start for start, stop in self.box)


@dataclass(frozen=True)
class RankWeight:
    """One buffer on one rank. `cut`: column, row, vocabulary, or whole; `box`: which part it is of
    the whole matrix, stack of matrices or vector.
    """

    name: str
    cut: str
    box: Box
    slices: tuple[Slice, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes on the rank."""
        return tuple(stop - start for start, stop in self.box)


@dataclass(frozen=True)
class Rank:
    """What one rank loads: number `tensor` of its tensor-parallel group, `expert` of the experts'.

    Tables that are computed are left out: each rank computes them.
    """

    tensor: int
    expert: int
    weights: tuple[RankWeight, ...]


def slice_map(manifest: Mapping[str, Any], tp: int = 1, ep: int = 1) -> tuple[Rank, ...]:
    """Every rank of `tp` × `ep`; targets of a build have the same map.

    Experts are dealt to the `ep` ranks, and cut like other matrices over the `tp` ranks of each.
    `UsageError` names every weight that so many ranks cannot share.
    """
    for name, count in (("--tp", tp), ("--ep", ep)):
        if not 1 <= count <= MOST_RANKS:
            raise UsageError(f"is {count}", where=name, allowed=f"1 to {MOST_RANKS}")
    try:
        return _ranks(manifest, tp, ep)
    except (KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError):
        where = str(manifest.get("name", "manifest"))
        raise UsageError(
            "its weights are not described as this version does", where=where
        ) from None


def _ranks(manifest: Mapping[str, Any], tp: int, ep: int) -> tuple[Rank, ...]:
    shapes = {t["name"]: tuple(t["shape"]) for t in manifest["tensors"]}
    weights = [w for w in manifest["targets"][0]["weights"] if "rope" not in _source(w)]
    if tp > 1 and not any("cut" in w for w in weights):
        raise UsageError("the build does not say how weights are cut", hint="build it again")
    if ep > 1 and not any(w.get("stack", 1) > 1 for w in weights):
        raise UsageError("this model has no stack of experts to deal out", where="--ep")
    ranks = []
    for expert, tensor in product(range(ep), range(tp)):
        wrong: dict[str, str] = {}
        place = Place(tensor, tp, expert, ep)
        found = [_weight(w, shapes, place, wrong) for w in weights]
        ranks.append(Rank(tensor, expert, tuple(found)))
        problems = ProblemList(str(manifest.get("name", "manifest")))
        for name, problem in wrong.items():
            problems.add(problem, where=quote(name))
        problems.raise_if_any(hint="take fewer ranks")
    return tuple(ranks)


@dataclass(frozen=True)
class Place:
    """A rank: number `tensor` of `tp`, number `expert` of `ep`."""

    tensor: int
    tp: int
    expert: int
    ep: int


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


def _source(weight: Mapping[str, Any]) -> Mapping[str, Any]:
    source = weight["source"]
    return source if isinstance(source, dict) else {}


def _weight(
    weight: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    place: Place,
    wrong: dict[str, str],
) -> RankWeight:
    """What a rank has of one weight; `wrong` gets what such weights cannot do, by name."""
    name = starred(weight["name"])
    packed, stack = _source(weight).get("packed"), int(weight.get("stack", 1))
    parts: Sequence[Mapping[str, Any]] = weight.get("parts", ())
    if packed is not None:
        n, k = packed["rows"], packed["cols"]
    else:
        n, k = sum(part["rows"] for part in parts) // stack, parts[0]["cols"]
    rows, columns, kind = (0, n), (0, k), "whole"
    if "cut" in weight:
        cut = weight["cut"]
        kind, along = cut["kind"], k if cut["kind"] == "row" else n
        law = (cut["unit"], cut["groups"], place.tp, place.tensor, cut["repeats"])
        found = cut_range(along, *law)
        if found[0] == found[1]:
            units = f"{cut['groups']} groups of {-(-along // cut['unit']) // cut['groups']}"
            wrong[name] = (
                f"{units} times {cut['unit']} elements cannot be shared by {place.tp} ranks"
            )
        rows, columns = (rows, found) if kind == "row" else (found, columns)
    experts = cut_range(stack, 1, stack, place.ep, place.expert) if stack > 1 else (0, 1)
    if experts[0] == experts[1]:
        wrong[name] = f"{stack} experts cannot be dealt to {place.ep} ranks"
    try:
        if packed is not None:
            slices = tuple(Slice(*found) for found in packed_slices(packed, shapes, rows, columns))
        else:
            box = (experts, rows, columns)
            slices = tuple(Slice(*found) for found in plain_slices(parts, shapes, stack, n, box))
    except ValueError as error:
        wrong[name], slices = str(error), ()
    is_vector = packed is None and len(shapes.get(parts[0]["tensor"], ())) == 1
    matrix = (rows,) if is_vector else (rows, columns)
    return RankWeight(weight["name"], kind, (experts, *matrix) if stack > 1 else matrix, slices)


def kinds_of_weights(ranks: Sequence[Rank]) -> Iterator[tuple[str, list[RankWeight]]]:
    """Weights that are cut alike, as one: a name in which `*` stands for numbers, and what each
    rank has of the first of them.
    """
    seen: set[tuple[str, tuple[Any, ...]]] = set()
    for of_ranks in zip(*(rank.weights for rank in ranks), strict=True):
        name = starred(of_ranks[0].name)
        like = tuple(
            (w.cut, w.box, tuple((s.view, s.box, s.at) for s in w.slices)) for w in of_ranks
        )
        if (name, like) not in seen:
            seen.add((name, like))
            yield name, list(of_ranks)


def starred(name: str) -> str:
    """A name with `*` for the numbers in it."""
    return ".".join("*" if word.isdigit() else word for word in name.split("."))
