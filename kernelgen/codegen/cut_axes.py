"""Owns what is cut alike: axes of values and of weights, joined where an op takes both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

COLUMN, ROW, VOCABULARY = "column", "row", "vocabulary"


@dataclass(frozen=True)
class Cut:
    """A matrix `[N, K]` (or each of a stack, or a vector) that ranks share.

    `column`: N is cut, each rank has some outputs. `row`: K is cut, the ranks' products are summed.
    `vocabulary`: N is cut, outputs are gathered or, of a table, looked up and summed. Ranks get
    whole runs of `unit` elements, whole `groups` of them where there are enough; more ranks
    than groups share a group, in whole units. `repeats`: what is a group of one unit they may
    all hold: keys and values, which several heads of queries read.
    """

    kind: str
    unit: int
    groups: int
    repeats: bool = False


@dataclass(eq=False)
class Axis:
    """Values that are cut alike: `size` elements a row, whole units in groups.

    `makers`: numbers of the products that made them. `inner`: rows of experts, of which a token
    has several; else a row may be heads, which come one after the other.
    """

    size: int
    makers: set[int]
    inner: bool = False
    unit: int = 1
    groups: int | None = None
    gathered: bool = False
    repeats: bool = False
    joined: Axis | None = None

    def root(self) -> Axis:
        """The axis that this one has become a part of."""
        return self if self.joined is None else self.joined.root()


class Refused(Exception):
    """Products whose outputs nobody can use in parts."""

    def __init__(self, axes: Sequence[Axis]) -> None:
        self.makers = {maker for axis in axes for maker in axis.root().makers}


def joined(axis: Axis, other: Axis) -> Axis:
    """Both as one; raises `Refused` where they are cut in different ways."""
    axis, other = axis.root(), other.root()
    if axis is other:
        return axis
    if axis.size != other.size:
        raise Refused([min(axis, other, key=lambda a: a.size)])
    differ = axis.groups != other.groups and None not in (axis.groups, other.groups)
    if differ or axis.inner != other.inner:
        raise Refused([axis, other])
    other.joined = axis
    axis.makers |= other.makers
    axis.unit = lcm(axis.unit, other.unit)
    axis.groups = axis.groups or other.groups
    axis.gathered = axis.gathered or other.gathered
    axis.repeats = axis.repeats or other.repeats
    return axis
