"""Owns the printing of row ops as Triton statements on one tile of rows, in float32 registers.

Every value is rounded to its own dtype where its op ends, so that a fused program gives the bits of
an unfused one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelgen.codegen.triton.depth import depth_mixed
from kernelgen.codegen.triton.expressions import rounded, triton_expr, triton_name
from kernelgen.codegen.triton.frame import Frame, address, load_as_float
from kernelgen.ir.graph import Node, Role
from kernelgen.ops import DepthMix, Embed, Pointwise, Rope, RowReduce, SelectRows, SumExperts
from kernelgen.planner.network import Region

_ROWS = (Role.STREAM, Role.TEMP)


@dataclass
class TileProgram:
    """Prints what a value is at the frame, computing first whatever it is made of.

    `lines` collects statements; `names` maps what has been computed (value, columns) to variables.
    Values that the template computes (statistics, sums of a product) are put there with `bind`.
    """

    region: Region
    frame: Frame
    taken: set[str] = field(default_factory=set)
    """variables of the kernel so far; share one set between the programs of a kernel"""
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    """selected value → variable with its row numbers"""
    words: Mapping[str, int] = field(default_factory=dict)
    """step value that is read from the step's arguments → word at which it starts there"""
    known: Mapping[str, str] = field(default_factory=dict)
    """step value → variable of the template that holds it at the frame's row"""
    lines: list[str] = field(default_factory=list)

    def bind(self, name: str, variable: str) -> None:
        """Tell where a value computed elsewhere is."""
        self.names[name, self.frame.column] = variable

    def value(self, name: str, frame: Frame | None = None) -> str:
        """The variable that holds a value at the frame."""
        at = frame or self.frame
        base = self.region.base(name)
        node = self._maker(base)
        if node is not None:
            at = self._whole(name, base, at)
        key = (
            name if node is None else base,
            self.frame.column if self._is_number(name) else at.column,
        )
        if key not in self.names:
            text = self._outside(name, at) if node is None else self._made(node, at)
            self.names[key] = self.let(name, text)
        return self.names[key]

    def _whole(self, name: str, base: str, at: Frame) -> Frame:
        """The frame of a value made inside and seen through a view: columns of the whole row."""
        type_, access = self.region.value(name).type, self.region.network.access[name]
        if name == base or len(type_.shape) == len(self.region.value(base).type.shape):
            return at
        column = address(f"{at.head} * {type_.row_width}", str(access.offset), at.column)
        return replace(at, column=f"({column})", vector=at.tile, head="")

    def let(self, name: str, text: str) -> str:
        """Assign a text to a new variable named after a value."""
        variable = self.fresh(f"{triton_name(name)}")
        self.lines.append(f"{variable} = {text}")
        return variable

    def fresh(self, stem: str) -> str:
        """A variable that no other statement of the kernel assigns."""
        stem = f"{stem.rstrip('_')}_v"
        name, count = stem, 1
        while name in self.taken:
            count += 1
            name = f"{stem}{count}"
        self.taken.add(name)
        return name

    def _maker(self, base: str) -> Node | None:
        """The node of the region that computes a value, unless it only chooses rows."""
        if base not in self.region.made:
            return None
        net = self.region.network
        node = net.nodes[net.producer[base]]
        return None if isinstance(node.op, SelectRows) else node

    def _is_number(self, name: str) -> bool:
        type_ = self.region.value(name).type
        return type_.leading is not None and type_.shape[-1] == 1

    def _made(self, node: Node, at: Frame) -> str:
        op = node.op
        dtype = self.region.value(node.outputs[0]).type.dtype
        if isinstance(op, Pointwise):
            return rounded(triton_expr(op.expr, [self.value(n, at) for n in node.inputs]), dtype)
        if isinstance(op, RowReduce):
            return self.reduced(node, self.element(node, self.frame))
        if isinstance(op, Rope):
            return rounded(self._rope(node, at), dtype)
        if isinstance(op, Embed):
            return rounded(self._embed(node, at), dtype)
        if isinstance(op, SumExperts):
            return self._sum_experts(node, at)
        if isinstance(op, DepthMix):
            return rounded(depth_mixed(self, node, at), dtype)
        raise AssertionError(f"{op.kind} is not a row op")

    def _sum_experts(self, node: Node, at: Frame) -> str:
        """Products one after the other, best expert first."""
        made, weights = node.inputs
        count = self.region.value(weights).type.row_width
        terms = []
        for j in range(count):
            weight = self.frame.number.load(self.pointer(weights, replace(at, column=str(j))))
            term = self._outside(made, replace(at, head=str(j)))
            terms.append(f"{weight} * {term}")
        return " + ".join(terms)

    def element(self, node: Node, at: Frame | None = None) -> str:
        """What a row reduction reduces, at each column."""
        assert isinstance(node.op, RowReduce)
        return triton_expr(
            node.op.expr, [self.value(n, at or self.frame) for n in node.inputs], top=False
        )

    def reduced(self, node: Node, element: str) -> str:
        """The reduction over the tile's columns, the whole row; missing ones count nothing."""
        assert isinstance(node.op, RowReduce)
        nothing = neutral(node)
        mask = self.frame.vector
        if mask.text:
            kept = f"tl.where({mask.text}, {element}, {nothing})"
            element = f"({kept} if {mask.only_if} else {element})" if mask.only_if else kept
        text = f"{reduce_call(node)}({element}, axis=1)[:, None]"
        return text + finished(node, self.region)

    def _outside(self, name: str, at: Frame) -> str:
        """The load of a value that comes from outside, or of rows chosen among those."""
        type_ = self.region.value(name).type
        mask = (
            at.vector if type_.leading is None else at.number if self._is_number(name) else at.tile
        )
        return load_as_float(mask, self.pointer(name, at), type_.dtype)

    def pointer(self, name: str, at: Frame | None = None) -> str:
        """Where a value from outside lies at the frame."""
        at = at or self.frame
        region, net = self.region, self.region.network
        access, type_ = net.access[name], region.value(name).type
        base, offset, row = access.base, access.offset, at.row
        if base in region.made:  # only a choice of rows is made inside and still lies outside
            source = net.access[self._select(base).inputs[0]]
            row, base, offset = self.selected(base), source.base, offset + source.offset
        pointer, value = triton_name(base), region.value(base)
        if value.role not in _ROWS:
            return address(pointer, at.column)
        stride = value.type.static_elements
        start = f"{row} * {stride}" if stride > 1 else row
        if self._is_number(name):
            return address(pointer, start, at.head, str(offset))
        head = f"{at.head} * {type_.row_width}" if len(type_.shape) == 3 else ""
        return address(pointer, start, head, str(offset), at.column)

    def _select(self, base: str) -> Node:
        net = self.region.network
        return net.nodes[net.producer[base]]

    def selected(self, base: str) -> str:
        """Row numbers of a choice of rows, loaded once."""
        if base not in self.rows:
            index = self._select(base).inputs[1]
            start = address(triton_name(index), str(self.words.get(index, 0)), self.frame.row)
            text = self.frame.number.load(start, "0")
            self.rows[base] = self.let(base, text)
        return self.rows[base]

    def _rope(self, node: Node, at: Frame) -> str:
        """Every column with its partner: `x·cos ∓ partner·sin`."""
        x, table, positions = node.inputs
        half = self.region.value(table).type.row_width
        width = self.region.value(x).type.row_width
        assert at.column == self.frame.column, "a rotation of a rotation"
        column = self.frame.column
        rest = (
            f"tl.where({column} < {2 * half}, {column} - {half}, {column})"
            if 2 * half < width
            else f"{column} - {half}"
        )
        partner = self._once("partner", f"tl.where({column} < {half}, {column} + {half}, {rest})")
        angle = self._once("angle", f"tl.where({column} < {half}, {column}, {column} - {half})")
        sign = self._once("sign", f"tl.where({column} < {half}, -1.0, 1.0)")
        where = self.known.get(positions) or self._once(
            positions, self.frame.number.load(address(triton_name(positions), self.frame.row), "0")
        )
        row = address(triton_name(table), f"{where} * {2 * half}", angle)
        mask = at.tile
        if 2 * half < width:
            inside = f"({column} < {2 * half})"
            assert not mask.only_if
            mask = type(mask)(f"{mask.text} & {inside}" if mask.text else inside)
        cos = self._once(f"{table}.cos", mask.load(row, "1.0"))
        sin = self._once(f"{table}.sin", mask.load(f"{row} + {half}"))
        a, b = self.value(x, at), self.value(x, at.moved(partner))
        return f"{a} * {cos} + {b} * {sin} * {sign}"

    def _once(self, what: str, text: str) -> str:
        """A variable of the frame that several ops use."""
        key = (f"#{what} {text}", "")
        if key not in self.names:
            self.names[key] = self.let(what, text)
        return self.names[key]

    def _embed(self, node: Node, at: Frame) -> str:
        ids, table = node.inputs
        type_ = self.region.value(table).type
        vocabulary, width = type_.shape
        token = self._once(
            ids, self.frame.number.load(address(triton_name(ids), self.frame.row), "-1")
        )
        known = self._once("known", f"({token} >= 0) & ({token} < {vocabulary})")
        start = f"{token}.to(tl.int64) * {width}"
        pointer = address(triton_name(self.region.base(table)), start, at.column)
        mask = at.tile
        assert not mask.only_if
        inside = f"{known} & {mask.text}" if mask.text else known
        return load_as_float(type(mask)(inside), pointer, type_.dtype)


def reduce_call(node: Node) -> str:
    """The function that reduces an axis."""
    assert isinstance(node.op, RowReduce)
    return "tl.max" if node.op.how == "max" else "tl.sum"


def neutral(node: Node) -> str:
    """What a reduction starts from."""
    assert isinstance(node.op, RowReduce)
    return 'float("-inf")' if node.op.how == "max" else "0.0"


def finished(node: Node, region: Region) -> str:
    """What is left to do with a reduced row: ` / 4096` of a mean."""
    assert isinstance(node.op, RowReduce)
    width = region.value(node.inputs[0]).type.row_width
    return f" / {float(width)!r}" if node.op.how == "mean" else ""


def levels(region: Region, nodes: Sequence[Node]) -> list[list[Node]]:
    """Row reductions by how many others each has to wait for."""
    net = region.network
    depth: dict[int, int] = {}
    found: list[list[Node]] = []
    for node in nodes:
        number = net.producer[node.outputs[0]]
        before = net.ancestors[number] & region.mask
        reduces = node.op
        level = max((depth[i] for i in depth if before >> i & 1), default=0)
        if isinstance(reduces, RowReduce):
            while len(found) <= level:
                found.append([])
            found[level].append(node)
            level += 1
        depth[number] = level
    return found
