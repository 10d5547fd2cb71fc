"""Owns the printing of row programs: row-wise ops as C++ loops over one row (or one head) in cache.

Every value is rounded to its own dtype where its op ends, so that a fused program gives the bits of
an unfused one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelgen.codegen.cpp.expressions import cpp_expr, cpp_float, cpp_name, cpp_type
from kernelgen.codegen.cpp.places import Place
from kernelgen.ir.graph import Node, Role
from kernelgen.ir.types import Type
from kernelgen.ops import DepthMix, Embed, Pointwise, Rope, RowReduce, SelectRows, SumExperts
from kernelgen.planner.network import Region

_ROWS = (Role.STREAM, Role.TEMP)


@dataclass
class RowProgram:
    """Prints nodes one after the other; knows where each value lies.

    `token`: C++ text of the row's number. `head`: set where the whole program runs for one head;
    otherwise ops on
    `[rows, heads, D]` get a loop of their own. `layouts`: weight → layout of the build.
    """

    region: Region
    token: str
    layouts: Mapping[str, str]
    head: str = ""
    places: dict[str, Place] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def place(self, name: str) -> Place:
        """Where a value lies. Outside values are addressed from the current token's row."""
        if name in self.places:
            return self.places[name]
        access, type_ = self.region.network.access[name], self.region.value(name).type
        heads = len(type_.shape) == 3
        if access.base in self.places:
            base = self.places[access.base]
        else:
            base = self._outside(access.base)
        text = f"({base.text} + {access.offset})" if access.offset else base.text
        if type_.leading is not None and type_.row_width == 1:
            at = text if heads else f"{text}[0]"
            return Place(at, type_, "number", heads and base.whole)
        return Place(text, type_, base.kind, heads and base.whole, base.whole)

    def _outside(self, base: str) -> Place:
        """Typed memory of an outside value; a pointer to the token's row is declared at first
        use."""
        value = self.region.value(base)
        text = cpp_name(base)
        if value.role in _ROWS:
            row = f"{text}_row"
            at = f"(size_t){self.token} * {value.type.static_elements}"
            self.lines.append(f"const {cpp_type(value.type.dtype)}* const {row} = {text} + {at};")
            text = row
        self.places[base] = Place(text, value.type, "tensor", len(value.type.shape) == 3)
        return self.places[base]

    def emit(self, node: Node, target: Place | None = None) -> None:
        """Print one node; its result goes to `target` or to a local array."""
        op = node.op
        if isinstance(op, Pointwise):
            self._pointwise(node, op, target)
        elif isinstance(op, RowReduce):
            self._reduce(node, op)
        elif isinstance(op, Rope):
            self._rope(node, target)
        elif isinstance(op, Embed):
            self._embed(node, target)
        elif isinstance(op, SelectRows):
            self._select(node, target)
        elif isinstance(op, SumExperts):
            self._sum_experts(node, target)
        elif isinstance(op, DepthMix):
            self._depth_mix(node, op, target)
        else:
            raise AssertionError(f"{op.kind} is not a row op")

    def _target(self, name: str, target: Place | None) -> Place:
        """The given place, or a new local array (one head's worth where the program runs for one
        head)."""
        if target is None:
            type_ = self.region.value(name).type
            single = self.head and len(type_.shape) == 3
            size = type_.row_width if single else type_.static_elements
            text = cpp_name(name)
            self.lines.append(f"alignas(64) float {text}[{size}];")
            heads = len(type_.shape) == 3
            whole = not (heads and self.head)
            target = Place(text, type_, "local", heads and whole, whole)
        self.places[name] = target
        return target

    def _head(self, type_: Type) -> str:
        return (self.head or "h") if len(type_.shape) == 3 else ""

    def _over_heads(self, type_: Type, body: Sequence[str]) -> None:
        """The body as it is, or inside a loop over heads where the op works on all of them."""
        if len(type_.shape) == 3 and not self.head:
            self.lines.append(f"for (int h = 0; h < {type_.shape[1]}; ++h) {{")
            self.lines += [f"  {line}" for line in body]
            self.lines.append("}")
        else:
            self.lines += body

    def _pointwise(self, node: Node, op: Pointwise, target: Place | None) -> None:
        type_ = self.region.value(node.outputs[0]).type
        head = self._head(type_)
        inputs = [self.place(n).load("i", head) for n in node.inputs]
        where = self._target(node.outputs[0], target)
        body = where.store("i", head, cpp_expr(op.expr, inputs))
        self._over_heads(type_, [f"for (int i = 0; i < {type_.row_width}; ++i) {body}"])

    def _reduce(self, node: Node, op: RowReduce) -> None:
        name, source = node.outputs[0], self.region.value(node.inputs[0]).type
        head, text = self._head(source), cpp_name(name)
        if name in self.region.outputs:
            text += "_here"  # the plain name is the operand that takes it
        element = cpp_expr(op.expr, [self.place(n).load("i", head) for n in node.inputs])
        call = f"kg::row_{op.how}<{source.row_width}>([&](int i) {{ return {element}; }})"
        all_heads = bool(head) and not self.head
        if all_heads:
            self.lines.append(f"float {text}[{source.shape[1]}];")
            self._over_heads(source, [f"{text}[h] = {call};"])
        else:
            self.lines.append(f"const float {text} = {call};")
        type_ = self.region.value(name).type
        self.places[name] = Place(text, type_, "number", all_heads, not (head and self.head))

    def _rope(self, node: Node, target: Place | None) -> None:
        x, table, positions = node.inputs
        type_ = self.region.value(node.outputs[0]).type
        half, width, head = (
            self.region.value(table).type.row_width,
            type_.row_width,
            self._head(type_),
        )
        source, where = self.place(x), self._target(node.outputs[0], target)
        cos = f"{cpp_name(node.outputs[0])}_cos"
        row = f"(size_t){cpp_name(positions)}[{self.token}] * {2 * half}"
        self.lines.append(f"const float* const {cos} = {cpp_name(table)} + {row};")
        low, high = "i", f"i + {half}"
        body = [
            f"for (int i = 0; i < {half}; ++i) {{",
            f"  const float a = {source.load(low, head)}, b = {source.load(high, head)};",
            f"  const float cosine = {cos}[i], sine = {cos}[i + {half}];",
            f"  {where.store(low, head, 'a * cosine - b * sine')}",
            f"  {where.store(high, head, 'b * cosine + a * sine')}",
            "}",
        ]
        if 2 * half < width:
            copy = where.store("i", head, source.load("i", head))
            body.append(f"for (int i = {2 * half}; i < {width}; ++i) {copy}")
        self._over_heads(type_, body)

    def _embed(self, node: Node, target: Place | None) -> None:
        ids, table = node.inputs
        type_ = self.region.value(node.outputs[0]).type
        source = self.region.value(table).type
        where = self._target(node.outputs[0], target)
        packed = "true" if self.layouts.get(self.region.base(table)) == "panel" else "false"
        row = f"{cpp_name(node.outputs[0])}_row"
        sizes = f"{source.shape[0]}, {source.row_width}"
        kind = f"kg::TableRow<{cpp_type(source.dtype)}, {packed}, {sizes}>"
        self.lines.append(f"const {kind} {row}({cpp_name(table)}, {cpp_name(ids)}[{self.token}]);")
        self.lines.append(
            f"for (int i = 0; i < {type_.row_width}; ++i) {where.store('i', '', f'{row}[i]')}"
        )

    def _sum_experts(self, node: Node, target: Place | None) -> None:
        """Products and sums one after the other, best expert first, as kg::experts_summed does."""
        made, weights = node.inputs
        type_, count = self.region.value(made).type, self.region.value(weights).type.row_width
        source, weight = self.place(made), self.place(weights)
        where, total = self._target(node.outputs[0], target), f"{cpp_name(node.outputs[0])}_sum"
        terms = [
            f"{weight.load(str(j), '')} * {source.load(f'{j * type_.row_width} + i', '0')}"
            for j in range(count)
        ]
        self.lines.append(f"for (int i = 0; i < {type_.row_width}; ++i) {{")
        self.lines.append(f"  float {total} = {terms[0]};")
        self.lines += [f"  {total} += {term};" for term in terms[1:]]
        self.lines += [f"  {where.store('i', '', total)}", "}"]

    def _depth_mix(self, node: Node, op: DepthMix, target: Place | None) -> None:
        """Scores of all sources first, then their sum: rows are in cache by then."""
        *sources, norm, probe = node.inputs
        width, text = self.region.value(node.outputs[0]).type.row_width, cpp_name(node.outputs[0])
        rows = [self.place(name).load("i", "") for name in sources]
        vector = f"{self.place(norm).load('i', '')} * {self.place(probe).load('i', '')}"
        where = self._target(node.outputs[0], target)
        score, weight = f"{text}_score", f"{text}_weight"
        self.lines.append(f"float {score}[{len(rows)}], {weight}[{len(rows)}];")
        for s, row in enumerate(rows):
            lambdas = f"[&](int i) {{ return {row}; }}, [&](int i) {{ return {vector}; }}"
            call = f"kg::depth_score<{width}>({lambdas}, {cpp_float(op.eps)})"
            self.lines.append(f"{score}[{s}] = {call};")
        self.lines.append(f"kg::depth_weights<{len(rows)}>({score}, {weight});")
        mixed = " + ".join(f"{weight}[{s}] * {row}" for s, row in enumerate(rows))
        self.lines.append(f"for (int i = 0; i < {width}; ++i) {where.store('i', '', mixed)}")

    def _select(self, node: Node, target: Place | None) -> None:
        """Another token's row: an address, unless the rows themselves are wanted."""
        x, index = node.inputs
        base, type_ = self.region.base(x), self.region.value(x).type
        row = f"{cpp_name(node.outputs[0])}_row"
        at = f"(size_t){cpp_name(index)}[{self.token}] * {type_.static_elements}"
        self.lines.append(f"const {cpp_type(type_.dtype)}* const {row} = {cpp_name(base)} + {at};")
        source = Place(row, type_, "tensor", len(type_.shape) == 3)
        self.places[node.outputs[0]] = source
        if target is not None:
            copy = target.store("i", self._head(type_), source.load("i", self._head(type_)))
            self._over_heads(type_, [f"for (int i = 0; i < {type_.row_width}; ++i) {copy}"])
