"""Owns the GPU memory of a sweep: weights, activations, cache; links of a chain take turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from kernelgen.formats import WeightFormat
from kernelgen.ir.codec import block_from_json
from kernelgen.ir.graph import Block, Role, Value
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Dim, Sizes
from kernelgen.ops.registry import op_kinds
from kernelgen.planner.plan import COUNTERS, SCRATCH
from kernelgen.tune.bundle import Argument, DeviceFacts, Group, Matrix, ModelFacts, TableFacts
from kernelgen.tune.driver import Described, Parameters, parameters
from kernelgen.tune.packed_weights import random_packed, stored_bytes
from kernelgen.tune.step_data import (
    GREEDY,
    Choosing,
    Requests,
    args_words,
    pages_of,
    requests_of,
)

STEP_VALUES = ("token_ids", "positions", "rows")
_ALIGN = 256
_APART = 2.2
"""times the L2 cache: what lies between two uses of the same weights or pages"""
_WEIGHT_SIZE = 1 / 64
"""spread of the weights: rows of 4,096 keep their size"""
_ROW_BUFFERS = 4
"""copies of the activations of kernels that read nothing but rows: as in a step, the kernel before
has just written them"""
_MOST_COPIES = 512
_MOST_BYTES = 24 << 30
"""of the copies of a group's weights"""
_DRAWN_AT_ONCE = 256 << 20
_NO_SIZES = Sizes(0, 0, 0)

Tensor = Any


class Arena:
    """Random numbers of one dtype, as many as were ever asked for; copies of weights are slices."""

    def __init__(self, dtype: str, device: str, seed: int) -> None:
        import torch

        self._kind = getattr(torch, dtype)
        self._device = device
        self._made = torch.Generator(device=device).manual_seed(seed)
        self.tensor: Tensor = torch.empty(0, dtype=self._kind, device=device)

    def reserve(self, elements: int) -> None:
        """Make it at least so long; what was there is made anew."""
        import torch

        if len(self.tensor) >= elements:
            return
        self.tensor = torch.empty(0, dtype=self._kind, device=self._device)
        self.tensor = torch.empty(elements, dtype=self._kind, device=self._device)
        self.tensor.normal_(0, _WEIGHT_SIZE, generator=self._made)


@dataclass
class Stage:
    """What all groups of a sweep share on one device."""

    facts: DeviceFacts
    device: str = "cuda"
    describe: Callable[[int, Matrix], Described] | None = None
    """makes descriptors; there are none without a driver"""
    arenas: dict[str, Arena] = field(default_factory=dict)
    _pool: tuple[tuple[str, str], Tensor] | None = None
    _tables: dict[TableFacts, Tensor] = field(default_factory=dict)

    def arena(self, dtype: str, elements: int) -> Tensor:
        """Random numbers, at least so many."""
        arena = self.arenas.setdefault(dtype, Arena(dtype, self.device, len(self.arenas) + 1))
        arena.reserve(elements)
        return arena.tensor

    def pool(self, model: ModelFacts, pages: int, layer: int | None = None) -> Tensor:
        """`[pages, page_bytes]`: random keys and values everywhere, zeros in page 0.

        They are of the type that `layer` keeps; else of the narrowest, which others can read too.
        """
        import torch

        kinds = {getattr(torch, one.dtype) for one in model.layers if layer in (None, one.layer)}
        kind = min(kinds or {torch.bfloat16}, key=lambda kind: kind.itemsize)
        about = (model.name, str(kind))
        if self._pool is None or self._pool[0] != about or len(self._pool[1]) < pages:
            self._pool = None
            self._pool = (about, self._entries(kind, pages, model.page_bytes))
        return self._pool[1]

    def _entries(self, kind: Any, pages: int, page_bytes: int) -> Tensor:
        """Random numbers of a type as bytes; nothing is drawn as 8-bit floats, they are rounded."""
        import torch

        made = torch.Generator(device=self.device).manual_seed(7)
        whole = torch.empty((pages, page_bytes // kind.itemsize), dtype=kind, device=self.device)
        if kind.itemsize > 1:
            whole.normal_(generator=made)
        else:
            for part in torch.split(whole, max(1, _DRAWN_AT_ONCE // page_bytes)):
                drawn = torch.empty(part.shape, dtype=torch.bfloat16, device=self.device)
                part.copy_(drawn.normal_(generator=made))
        octets = whole.view(torch.uint8)
        octets[0] = 0
        return octets

    @property
    def pool_bytes(self) -> int:
        """What the pool takes that scenes share."""
        return 0 if self._pool is None else int(self._pool[1].numel())

    def table(self, facts: TableFacts) -> Tensor:
        """cos and sin of every position."""
        import torch

        if facts not in self._tables:
            frequencies = torch.tensor(facts.inv_freq, dtype=torch.float64, device=self.device)
            at = torch.arange(facts.positions, dtype=torch.float64, device=self.device)
            angles = at[:, None] * frequencies
            both = torch.stack([angles.cos(), angles.sin()], dim=1) * facts.scale
            self._tables[facts] = both.float()
        return self._tables[facts]


@dataclass
class Scene:
    """One group on the stage: operands of every copy, and where each parameter comes from."""

    stage: Stage
    group: Group
    model: ModelFacts
    block: Block
    requests: Requests
    """of the timed step"""
    wide: Requests
    """of the checked step: as many logits as it has room for"""
    pages: Any
    token_ids: Any
    copies: int
    sets: int
    """of pages and arguments"""
    cold: int
    """links after which what the first one has read has left the cache"""
    weights: dict[str, tuple[Tensor, ...]]
    rows: dict[str, tuple[Tensor, ...]]
    """inputs and outputs that are no weights"""
    args: tuple[Tensor, ...]
    steps: dict[str, Tensor]
    scratch: Tensor
    counters: Tensor
    last_sampled: Tensor
    pool: Tensor | None
    _packed: dict[tuple[object, ...], list[Parameters]] = field(default_factory=dict)

    @staticmethod
    def of(stage: Stage, group: Group, model: ModelFacts, first_page: int = 1) -> Scene:
        """Allocate and fill; ends when the GPU is ready. Scenes that are used by turns have pages
        of their own: the newest entry of one context would be an old one of another.
        """
        return _Setting(stage, group, model, first_page).scene()

    @staticmethod
    def pages_needed(stage: Stage, group: Group, model: ModelFacts) -> int:
        """Pages of a scene, of all its sets; none without a cache."""
        return _Setting(stage, group, model, 1).pages_needed()

    def layer(self, copy: int) -> int | None:
        """The layer whose cache a copy works on."""
        layers = self.group.layers
        return layers[copy % len(layers)] if layers else None

    def page_set(self, copy: int) -> int:
        """The pages and arguments of a copy."""
        return copy // max(1, len(self.group.layers)) % self.sets

    def links(self, arguments: tuple[Argument, ...]) -> list[Parameters]:
        """Parameters of a launch for every copy, made once."""
        key = ("timed", arguments)
        if key not in self._packed:
            self._packed[key] = [
                parameters(
                    [self._value(a, copy, self.args[self.page_set(copy)]) for a in arguments]
                )
                for copy in range(self.copies)
            ]
        return self._packed[key]

    def first(self, arguments: tuple[Argument, ...], args: Tensor) -> Parameters:
        """Parameters of a launch on the first copy, in a step of its own."""
        return parameters([self._value(a, 0, args) for a in arguments])

    def operand(self, name: str, copy: int) -> Tensor:
        """What the copy is given for a value of the signature."""
        found = self.weights.get(name) or self.rows[name]
        return found[copy % len(found)]

    def step(self, choosing: Choosing, *, wide: bool) -> Tensor:
        """Arguments of a step on the first set of pages."""
        requests = self.wide if wide else self.requests
        words = args_words(
            self.model, requests, self.token_ids, self.pages[0], choosing, spared=not wide
        )
        return _on(self.stage.device, words)

    def source(self, argument: Argument, copy: int, args: Tensor) -> Tensor | int:
        """What a parameter points to, or the integer that it is."""
        if argument.kind == "integer":
            return argument.number
        if argument.kind == "layer_offset":
            layer = self.layer(copy)
            return 0 if layer is None else self.model.layer[layer].offset_bytes
        if argument.kind == "block_table":
            return args[self._table_word(copy) :]
        if argument.kind in ("operand", "matrix"):
            return self._operand(self.group.signature[argument.number], copy, args)
        known: dict[str, Tensor | None] = {
            "args": args,
            "cache": self.pool,
            "scratch": self.scratch,
            "counters": self.counters,
            "last_sampled": self.last_sampled,
            **self.steps,
        }
        found = known.get(argument.kind)
        assert found is not None, f"no buffer for {argument.kind}"
        return found

    def _value(self, argument: Argument, copy: int, args: Tensor) -> int | Described:
        found = self.source(argument, copy, args)
        if isinstance(found, int):
            return found
        start = int(found.data_ptr())
        if argument.matrix is None:
            return start
        assert self.stage.describe is not None, "descriptors need a driver"
        return self.stage.describe(start, argument.matrix)

    def _table_word(self, copy: int) -> int:
        layer = self.layer(copy)
        assert layer is not None
        group = self.model.cache_groups[self.model.layer[layer].group]
        return self.model.offset(f"block_table.{group.name}")

    def _operand(self, name: str, copy: int, args: Tensor) -> Tensor:
        if name in (SCRATCH, COUNTERS):
            return self.scratch if name == SCRATCH else self.counters
        value = self.block.value[name]
        if value.role is Role.STATE:
            assert self.pool is not None
            return self.pool
        if value.role is Role.STEP:
            return self.steps.get(name, args)
        return self.operand(name, copy)


def _on(device: str, numbers: Any) -> Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(numbers)).to(device)


class _Setting:
    """Everything that a scene is made from."""

    def __init__(self, stage: Stage, group: Group, model: ModelFacts, first_page: int) -> None:
        self.stage, self.group, self.model, self.first_page = stage, group, model, first_page
        self.block = block_from_json(dict(group.graph), op_kinds())
        self.requests = requests_of(group, model, every_logit=False)
        self.wide = requests_of(group, model, every_logit=True)
        self.sizes = group.extents.sizes.capacity
        own = [n for n in group.signature if n not in (SCRATCH, COUNTERS)]
        self.values = [self.block.value[name] for name in own]
        self.apart = int(_APART * stage.facts.l2_bytes)

    def scene(self) -> Scene:
        import torch

        group, device = self.group, self.stage.device
        big = [v for v in self.values if v.role is Role.WEIGHT and len(v.type.shape) > 1]
        copies, sets = self._copies(big)
        pages, pool = self._pages(sets)
        rng = np.random.default_rng(11)
        tokens = max(self.requests.tokens, 1)
        ids = rng.integers(0, self.model.vocabulary, tokens, dtype=np.int32)
        most_scratch = max((c.scratch_bytes for c in group.candidates), default=0)
        most_counters = max((c.counters for c in group.candidates), default=0)
        timed = [
            args_words(self.model, self.requests, ids, pages[s], GREEDY, spared=True)
            for s in range(sets)
        ]
        steps = {
            "token_ids": ids,
            "positions": self.requests.positions,
            "rows": self.requests.owners,
        }
        scene = Scene(
            stage=self.stage,
            group=group,
            model=self.model,
            block=self.block,
            requests=self.requests,
            wide=self.wide,
            pages=pages,
            token_ids=ids,
            copies=copies,
            sets=sets,
            cold=self._cold(copies),
            weights=self._weights(big, copies),
            rows=self._rows(big),
            args=tuple(_on(device, words) for words in timed),
            steps={name: _on(device, values) for name, values in steps.items()},
            scratch=torch.zeros(most_scratch + _ALIGN, dtype=torch.uint8, device=device),
            counters=torch.zeros(most_counters + 64, dtype=torch.int32, device=device),
            last_sampled=torch.zeros(self.model.max_rows, dtype=torch.int32, device=device),
            pool=pool,
        )
        if device != "cpu":
            torch.cuda.synchronize()
        return scene

    def pages_needed(self) -> int:
        """Pages of all sets of a group that has a cache."""
        if not self.group.layers:
            return 0
        big = [v for v in self.values if v.role is Role.WEIGHT and len(v.type.shape) > 1]
        _, sets = self._copies(big)
        return pages_of(self.requests) * sets

    def _cold(self, copies: int) -> int:
        """Copies that differ in their cache read enough before all of them have had their turn."""
        if not (self.group.layers and any(n.op.has(Trait.STATE_READ) for n in self.block.nodes)):
            return copies
        return min(copies, max(2, ceil(self.apart / self._entry_bytes())))

    def _copies(self, big: list[Value]) -> tuple[int, int]:
        """Copies so that what a link reads has left the cache before it is read again; sets of
        pages for them.
        """
        layers = len(self.group.layers)
        if layers and any(n.op.has(Trait.STATE_READ) for n in self.block.nodes):
            each = self._entry_bytes()
            sets = min(_MOST_COPIES, max(1, ceil(self.apart / (each * layers))))
            return layers * sets, sets
        each = sum(self._read_bytes(value) for value in big)
        if each:
            whole = sum(_stored_bytes(value) for value in big)
            most = max(1, min(_MOST_COPIES, _MOST_BYTES // whole))
            return min(most, max(1, ceil(self.apart / each))), 1
        return (max(_ROW_BUFFERS, layers) if layers else _ROW_BUFFERS), 1

    def _read_bytes(self, value: Value) -> int:
        """Of a weight, what one launch reads: of a stack the matrices that are chosen, next to
        nothing of a table that rows are gathered from.
        """
        for node in self.block.nodes:
            if value.name not in node.inputs:
                continue
            if node.op.has(Trait.GATHER) and node.inputs[0] == value.name:
                return 0
            if node.op.has(Trait.EXPERTS):
                at, types = node.inputs.index(value.name), self.block.input_types(node)
                return node.op.read_bytes(at, types, self.group.extents.sizes)
        return _stored_bytes(value)

    def _entry_bytes(self) -> int:
        """Keys and values that one launch reads."""
        window = max((self.model.cache_groups[self.model.layer[i].group].window or 1 << 30)
                     for i in self.group.layers)  # fmt: skip
        state = next(v.type for v in self.values if v.role is Role.STATE)
        seen = min(self.requests.length, window + self.requests.new - 1)
        return self.requests.count * seen * 2 * state.static_elements * state.dtype.bits // 8

    def _pages(self, sets: int) -> tuple[Any, Tensor | None]:
        """Page numbers of each set in random order, none used twice, and the pool."""
        count = pages_of(self.requests)
        numbers = np.random.default_rng(5).permutation(count * sets).astype(np.int32)
        order = self.first_page + numbers
        pages = order.reshape(sets, count)
        if not self.group.layers:
            return pages, None
        needed = self.first_page + count * sets
        return pages, self.stage.pool(self.model, needed, self.group.layers[0])

    def _weights(self, big: list[Value], copies: int) -> dict[str, tuple[Tensor, ...]]:
        """Slices of the arenas, one copy behind the other as far as it reaches, then from the
        start. Vectors and rotary tables are small: every copy has the same.
        """
        import torch

        found = self._packed_weights(big, copies)
        for dtype in {v.type.dtype.torch for v in big if v.name not in found}:
            mine = [v for v in big if v.name not in found and v.type.dtype.torch == dtype]
            sizes = [-(-v.type.static_elements // _ALIGN) * _ALIGN for v in mine]
            whole, each = sum(sizes), sum(self._read_bytes(v) for v in mine)
            span = self.apart // getattr(torch, dtype).itemsize + whole
            if each < sum(_stored_bytes(v) for v in mine):  # copies, of which little is read
                span = max(span, copies * whole)
            arena = self.stage.arena(dtype, span)
            room = max(1, len(arena) // whole)
            at = 0
            for value, size in zip(mine, sizes, strict=True):
                starts = [(i % room) * whole + at for i in range(min(copies, room))]
                length, shape = value.type.static_elements, _shape(value)
                found[value.name] = tuple(arena[s : s + length].view(*shape) for s in starts)
                at += size
        tables = {t.name: t for t in self.model.tables}
        for value in self.values:
            if value.role is Role.TABLE:
                found[value.name] = (self.stage.table(tables[value.name]),)
            elif value.role is Role.WEIGHT and value.name not in found:
                made = torch.Generator(device=self.stage.device).manual_seed(3)
                kind = getattr(torch, value.type.dtype.torch)
                plain = torch.empty(_shape(value), device=self.stage.device)
                found[value.name] = (plain.uniform_(0.5, 1.5, generator=made).to(kind),)
        return found

    def _packed_weights(self, big: list[Value], copies: int) -> dict[str, tuple[Tensor, ...]]:
        """Matrices in a format: one made, the others its copies elsewhere."""
        found: dict[str, tuple[Tensor, ...]] = {}
        for number, value in enumerate(big):
            kind = value.type.dtype
            if isinstance(kind, WeightFormat):
                first = random_packed(kind, _shape(value), self.stage.device, number + 1)
                found[value.name] = (first, *(first.clone() for _ in range(copies - 1)))
        return found

    def _rows(self, big: list[Value]) -> dict[str, tuple[Tensor, ...]]:
        """Activations: random where they come in, poison where they go out."""
        import torch

        gathers = any(n.op.has(Trait.GATHER) for n in self.block.nodes)
        count = 1 if big and not gathers else _ROW_BUFFERS
        made = torch.Generator(device=self.stage.device).manual_seed(13)
        found: dict[str, tuple[Tensor, ...]] = {}
        for value in self.values:
            if value.role in (Role.WEIGHT, Role.TABLE, Role.STATE, Role.STEP):
                continue
            shape = _shape(value, self.sizes)
            kind = getattr(torch, value.type.dtype.torch)
            if value.name not in self.block.producer and not kind.is_floating_point:
                chosen = [self._choices(value, shape, made) for _ in range(count)]
                found[value.name] = tuple(ids.to(kind) for ids in chosen)
                continue
            plain = [torch.empty(shape, device=self.stage.device) for _ in range(count)]
            if value.name in self.block.producer:
                found[value.name] = tuple(poisoned(p.to(kind)) for p in plain)
            elif value.type.row_width == 1:
                found[value.name] = tuple(
                    p.uniform_(0.2, 2, generator=made).to(kind) for p in plain
                )
            else:
                found[value.name] = tuple(p.normal_(generator=made).to(kind) for p in plain)
        return found

    def _choices(self, value: Value, shape: tuple[int, ...], made: Any) -> Tensor:
        """Different numbers in each row, of as many as their readers can tell apart: experts of the
        stack that they choose among, or of the logits that they were chosen by.
        """
        import torch

        readers = [node for node in self.block.nodes if value.name in node.inputs]
        stacks = [n for n in readers if n.op.has(Trait.EXPERTS)]
        first = self.block.input_types((stacks or readers)[0])[1 if stacks else 0]
        count = first.shape[0] if stacks else first.row_width
        assert isinstance(count, int)
        ranks = torch.rand(shape[0], count, device=self.stage.device, generator=made)
        return ranks.argsort(dim=1)[:, : shape[1]]


def poisoned(tensor: Tensor) -> Tensor:
    """The tensor, full of NaN; of −123456789 where it holds integers."""
    tensor.fill_(float("nan") if tensor.is_floating_point() else -123456789)
    return tensor


def _stored_bytes(value: Value) -> int:
    kind = value.type.dtype
    if isinstance(kind, WeightFormat):
        return stored_bytes(kind, _shape(value))
    return value.type.static_elements * kind.bits // 8


def _shape(value: Value, sizes: Sizes = _NO_SIZES) -> tuple[int, ...]:
    return tuple(sizes.of(dim) if isinstance(dim, Dim) else dim for dim in value.type.shape)
