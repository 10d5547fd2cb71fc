"""Owns the slice map: what of which checkpoint tensor each rank of a parallel group gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from kernelgen.core.errors import ProblemList, UsageError, quote
from kernelgen.pack.slice_law import Described, Place, described, shared
from kernelgen.pack.slice_parts import Box, packed_slices, plain_slices

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
    entries = {w["name"]: described(w) for w in manifest["targets"][0]["weights"]}
    weights = {name: what for name, what in entries.items() if what is not None}
    if tp > 1 and not any(what.cut for what in weights.values()):
        raise UsageError("the build does not say how weights are cut", hint="build it again")
    if ep > 1 and not any(what.stack > 1 for what in weights.values()):
        raise UsageError("this model has no stack of experts to deal out", where="--ep")
    ranks = []
    for expert, tensor in product(range(ep), range(tp)):
        wrong: dict[str, str] = {}
        found = []
        for name, what in weights.items():
            try:
                found.append(_of_rank(name, what, shapes, Place(tensor, tp, expert, ep)))
            except ValueError as error:
                wrong[starred(name)] = str(error)
        ranks.append(Rank(tensor, expert, tuple(found)))
        problems = ProblemList(str(manifest.get("name", "manifest")))
        for name, problem in wrong.items():
            problems.add(problem, where=quote(name))
        problems.raise_if_any(hint="take fewer ranks")
    return tuple(ranks)


def _of_rank(
    name: str, what: Described, shapes: Mapping[str, tuple[int, ...]], place: Place
) -> RankWeight:
    """What a rank has of one weight. ValueError where it cannot have its share."""
    experts, rows, columns = shared(what, place)
    if what.packed is not None:
        found = packed_slices(what.packed, shapes, (experts, rows, columns))
    else:
        found = plain_slices(what.parts, what.stack, what.n, (experts, rows, columns))
    is_vector = bool(what.parts) and what.parts[0]["cols"] == 1
    matrix = (rows,) if is_vector else (rows, columns)
    box = (experts, *matrix) if what.stack > 1 else matrix
    kind = "whole" if what.cut is None else str(what.cut["kind"])
    return RankWeight(name, kind, box, tuple(Slice(*piece) for piece in found))


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
