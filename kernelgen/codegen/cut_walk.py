"""Owns the walk through a block that finds which products ranks can share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import lcm

from kernelgen.codegen.cut_axes import COLUMN, ROW, VOCABULARY, Axis, Cut, Refused, joined
from kernelgen.formats import WeightFormat
from kernelgen.formats.format import WHOLE
from kernelgen.ir.graph import Block, Node, Role
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Type

_WORD = 32
"""codes below 8 bits: so many always end at a whole word"""


@dataclass
class Walk:
    """One pass over a block that takes every product for cut but those in `whole`."""

    block: Block
    streams: set[str]
    whole: set[int]
    axes: dict[str, Axis] = field(default_factory=dict)
    demands: list[tuple[str, str, Axis]] = field(default_factory=list)
    """(weight, kind, the axis that it is cut along)"""
    summed: set[str] = field(default_factory=set)
    """results of products that ranks have parts of: all of them are added up"""

    def run(self) -> None:
        """Raises `Refused`."""
        for number, node in enumerate(self.block.nodes):
            self._visit(number, node)
        leaving = [value for stream, value in self.block.results if stream in self.streams]
        refused = [self.axes[value] for value in leaving if value in self.axes]
        if refused:
            raise Refused(refused)
        for stream, value in self.block.results:
            if stream not in self.streams and value in self.axes:
                self.axes[value].root().gathered = True

    def cuts(self) -> Iterator[tuple[str, Cut]]:
        """The cut of every weight that has one."""
        for weight, kind, axis in self.demands:
            root, type_ = axis.root(), self._type(weight)
            length = _length(type_, kind)
            unit = max(1, root.unit * length // root.size)
            groups = root.groups or -(-length // unit)
            kind = VOCABULARY if root.gathered else kind
            yield weight, Cut(kind, unit, groups, root.repeats)

    def _visit(self, number: int, node: Node) -> None:
        op, cut = node.op, [name for name in node.inputs if name in self.axes]
        if op.has(Trait.MATMUL | Trait.EXPERTS):
            self._product(number, node)
        elif op.has(Trait.GATHER):
            self._table(node)
        elif not cut:
            if op.has(Trait.POINTWISE) and self.summed.intersection(node.inputs):
                self._summed_beside(node)
            elif op.has(Trait.EXPERT_SUM) and node.inputs[0] in self.summed:
                self.summed.add(node.outputs[0])
        elif op.has(Trait.SAMPLE):
            self.axes[cut[0]].root().gathered = True
        elif op.has(Trait.SCAN):
            self._scan(node)
        elif op.has(Trait.VIEW):
            self._view(node)
        elif op.has(Trait.POINTWISE):
            self._pointwise(node)
        elif op.has(Trait.ROW_REDUCE | Trait.ROW_MAP):
            self._in_heads(node)
        elif op.has(Trait.STATE_WRITE):
            self._write(node)
        elif op.has(Trait.ATTENTION):
            self._attention(node)
        else:
            raise Refused([self.axes[name] for name in cut])

    def _product(self, number: int, node: Node) -> None:
        x, weight = node.inputs[0], node.inputs[1]
        kind, type_ = self._type(weight).dtype, self._type(weight)
        outputs, inputs = type_.shape[-2:]
        assert isinstance(outputs, int) and isinstance(inputs, int)
        if any(name in self.axes for name in node.inputs[2:]):
            raise Refused([self.axes[n] for n in node.inputs[2:] if n in self.axes])
        if x in self.axes:
            axis = self.axes[x].root()
            # Sums of many experts' rows, before they are finished, are more than the narrow row.
            if axis.size != inputs or (node.op.has(Trait.EXPERTS) and not axis.inner):
                raise Refused([axis])
            if isinstance(kind, WeightFormat) and axis.groups is None:
                axis.unit = lcm(axis.unit, _columns(kind))
            self.demands.append((weight, ROW, axis))
            self.summed.add(node.outputs[0])
        elif number not in self.whole and self.block.value[weight].role is Role.WEIGHT:
            inner = node.op.has(Trait.EXPERTS)
            axis = self.axes[node.outputs[0]] = Axis(outputs, {number}, inner)
            if isinstance(kind, WeightFormat):
                axis.unit = _rows(kind)
            self.demands.append((weight, COLUMN, axis))

    def _summed_beside(self, node: Node) -> None:
        """A product that has to be whole, added to one whose parts are summed: of its whole row
        each rank takes some columns, and one sum is taken of both."""
        for name in node.inputs:
            number = self.block.producer.get(name)
            maker = self.block.nodes[number] if number is not None else None
            if maker is None or name in self.summed or not maker.op.has(Trait.MATMUL):
                continue
            x, weight = maker.inputs[0], maker.inputs[1]
            axis = Axis(self._type(x).row_width, set())
            kind = self._type(weight).dtype
            if isinstance(kind, WeightFormat):
                axis.unit = _columns(kind)
            self.demands.append((weight, ROW, axis))

    def _table(self, node: Node) -> None:
        """Rows of a table are looked up where they are; the others are zero, and all are summed."""
        for name in node.inputs:
            if self.block.value[name].role is Role.WEIGHT:
                rows = self._type(name).shape[0]
                assert isinstance(rows, int)
                self.demands.append((name, VOCABULARY, Axis(rows, set(), gathered=True)))

    def _view(self, node: Node) -> None:
        (x,), out = node.inputs, node.outputs[0]
        axis = self.axes[x].root()
        if axis.inner or self._type(out).static_elements != self._type(x).static_elements:
            raise Refused([axis])
        axis.unit = lcm(axis.unit, _head(self._type(out)))
        self.axes[out] = axis

    def _pointwise(self, node: Node) -> None:
        out = self._type(node.outputs[0])
        size = out.static_elements
        cut = [self.axes[name].root() for name in node.inputs if name in self.axes]
        for name in node.inputs:
            wide = self._type(name).static_elements == size
            if wide and name not in self.axes and self.block.value[name].role is not Role.WEIGHT:
                raise Refused(self._spoilers([name]) or cut)
        axis = cut[0]
        for other in cut[1:]:
            axis = joined(axis, other)
        for name in node.inputs:
            is_vector = self.block.value[name].role is Role.WEIGHT
            if is_vector and self._type(name).static_elements == size:
                self.demands.append((name, COLUMN, axis))
        axis.unit = axis.unit if axis.inner else lcm(axis.unit, _head(out))
        self.axes[node.outputs[0]] = axis

    def _in_heads(self, node: Node) -> None:
        """A row is a head: all of it lies on one rank."""
        x, axis = self._type(node.inputs[0]), self.axes.get(node.inputs[0])
        cut = [self.axes[name] for name in node.inputs if name in self.axes]
        if axis is None or len(cut) > 1 or len(x.shape) < 3 or axis.root().inner:
            raise Refused(cut)
        axis.root().unit = lcm(axis.root().unit, _head(x))
        self.axes[node.outputs[0]] = axis.root()

    def _write(self, node: Node) -> None:
        cut = [self.axes[name].root() for name in node.inputs if name in self.axes]
        if len(cut) != 2 or cut[0].size != cut[1].size:  # keys and values
            raise Refused(cut)
        self.axes[node.outputs[0]] = joined(*cut)

    def _attention(self, node: Node) -> None:
        q, state, _rows, *sinks = node.inputs
        cut = [self.axes[name].root() for name in node.inputs if name in self.axes]
        if q not in self.axes or state not in self.axes:
            raise Refused(cut)
        queries, kept = self.axes[q].root(), self.axes[state].root()
        groups = kept.size // _head(self._type(q))
        for axis in (queries, kept):
            axis.groups = groups
        kept.repeats = True
        for name in sinks:
            self.demands.append((name, COLUMN, queries))
        self.axes[node.outputs[0]] = queries

    def _scan(self, node: Node) -> None:
        """Every head, or every column where there are none, is on its own: rows and vectors of
        all of them are cut alike."""
        rows, others = [], []
        for name in node.inputs:
            value = self.block.value[name]
            if name in self.axes:
                rows.append(self.axes[name].root())
            elif value.role in (Role.STREAM, Role.TEMP):
                others.append(name)
        if others:
            raise Refused(self._spoilers(others) or rows)
        out = self._type(node.outputs[0])
        heads = out.static_elements // _head(out)
        for axis in rows:
            if axis.size % heads or axis.groups not in (None, heads):
                raise Refused(rows)
            axis.unit = lcm(axis.unit, axis.size // heads)
            axis.groups = heads if len(out.shape) > 2 else None
        for name in node.inputs:
            if self.block.value[name].role is Role.WEIGHT:
                length = self._type(name).shape[0]
                alike = [a for a in rows if a.size == length]
                if not alike:
                    raise Refused(rows)
                self.demands.append((name, COLUMN, alike[0]))
        for axis in rows[1:]:
            if axis.size == rows[0].size:
                joined(rows[0], axis)
        self.axes[node.outputs[0]] = next(a for a in rows if a.size == out.static_elements).root()

    def _spoilers(self, names: Sequence[str]) -> list[Axis]:
        """What keeps values whole that others of the same op are cut like: they are products that
        sum over a narrow row which need not be cut itself."""
        found = []
        for name in names:
            while name in self.block.producer:
                node = self.block.nodes[self.block.producer[name]]
                name = node.inputs[0]
                if not node.op.has(Trait.VIEW | Trait.POINTWISE):
                    if node.op.has(Trait.MATMUL) and name in self.axes:
                        found.append(self.axes[name].root())
                    break
        return found

    def _type(self, name: str) -> Type:
        return self.block.value[name].type


def _head(type_: Type) -> int:
    """Width of a row that must stay in one piece: a head's where there are heads, else 1."""
    return type_.row_width if len(type_.shape) > 2 and type_.row_width > 1 else 1


def _length(type_: Type, kind: str) -> int:
    """Elements of the axis of a weight that is cut."""
    sizes = [d for d in type_.shape if isinstance(d, int)]
    if len(sizes) == 1:
        return sizes[0]
    return sizes[-1] if kind == ROW else sizes[-2]


def _rows(kind: WeightFormat) -> int:
    """Rows that one scale, or one word of codes or zero points, may hold for."""
    packed = _WORD if kind.code.stored_bits < 8 or kind.zero else 1
    return lcm(packed, kind.rows if kind.rows != WHOLE else 1)


def _columns(kind: WeightFormat) -> int:
    """Columns of one group, and of whole words."""
    packed = _WORD if kind.code.stored_bits < 8 or kind.zero else 1
    return lcm(packed, kind.group if kind.group != WHOLE else 1)
