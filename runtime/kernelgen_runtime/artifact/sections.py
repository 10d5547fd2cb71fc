"""Owns the sections of one target: weights, cache, args and plans, each field checked by itself."""

from collections import Counter
from collections.abc import Iterable

from ..errors import shown
from .fields import INT32_MAX, SIZE_MAX, Fields
from .manifest import (
    EXPERT,
    PAGE_TOKENS,
    SCALE_BYTES,
    STATE_WINDOW,
    ArgsField,
    ArgsSchema,
    CacheGroup,
    CacheSchema,
    Packed,
    Packing,
    Part,
    Plan,
    Rope,
    RulesSchema,
    Weight,
    elements,
    laid_out_shape,
)

WEIGHT_DTYPES = ("float32", "bfloat16", "float16", "int32", "int8", "uint8")


def read_shape(fields: Fields, key: str) -> tuple[int, ...]:
    """Return list `key` of sizes, each at least 1; (1,) where it is not acceptable."""
    shape = fields.integers(key, 8)
    if 0 in shape or elements(shape) > SIZE_MAX:
        fields.wrong(key, f"sizes must be at least 1 and their product at most {SIZE_MAX}")
        return (1,)
    return shape


def each_once(fields: Fields, key: str, names: Iterable[object]) -> None:
    """Note every name that appears more than once in `key`."""
    for name, count in Counter(names).items():
        if count > 1:
            fields.wrong(key, f"{shown(name)} appears {count} times")


def read_weight(fields: Fields) -> Weight:
    """Read one entry of `weights`."""
    name, dtype = fields.text("name"), fields.choice("dtype", WEIGHT_DTYPES)
    shape, rope = read_shape(fields, "shape"), None
    layout, interleave, stack = "rows", 0, 1
    parts: tuple[Part, ...] = ()
    packed: Packed | None = None
    scalars: tuple[tuple[str, ...], ...] = ()
    source = fields.values.get("source")
    if source != "checkpoint" and "stack" in fields.values:
        fields.wrong("stack", "is for plain weights of the checkpoint only")
    if source == "checkpoint":
        layout = fields.choice("layout", ("rows", "panel"))
        interleave = fields.integer("interleave", 0, 1 << 20)
        stack = fields.integer("stack", 1, 1 << 16) if "stack" in fields.values else 1
        parts = tuple(_part(item) for item in fields.objects("parts", 4096))
        if not parts:
            fields.wrong("parts", "must name at least one checkpoint tensor")
            parts = (Part("", 1, 1),)
    elif isinstance(source, dict) and "packed" in source:
        layout = fields.choice("layout", ("rows", "panel"))
        packed = _packed(fields.object("source").object("packed"))
        if dtype != "uint8":
            fields.wrong("dtype", "a packed matrix is uint8")
    elif isinstance(source, dict) and "scalars" in source:
        scalars = _scalars(fields)
        if dtype != "float32":
            fields.wrong("dtype", "scalars are float32")
    else:
        rope = _rope(fields.object("source").object("rope"))
        if dtype != "float32":
            fields.wrong("dtype", "a rope table is float32")
    weight = Weight(name, dtype, shape, layout, parts, interleave, rope, packed, stack, scalars)
    _check_layout(fields, weight)
    return weight


def _scalars(fields: Fields) -> tuple[tuple[str, ...], ...]:
    lists = fields.object("source").values.get("scalars")
    found: list[tuple[str, ...]] = []
    for names in lists if isinstance(lists, list) else ():
        texts = [n for n in names if isinstance(n, str)] if isinstance(names, list) else []
        found.append(tuple(texts) if isinstance(names, list) and len(texts) == len(names) else ())
    if not found or not all(found):
        fields.wrong("source", "scalars must be lists of tensor names")
    return tuple(found)


def _part(fields: Fields) -> Part:
    rows, cols = fields.integer("rows", 1), fields.integer("cols", 1)
    return Part(fields.text("tensor"), rows, cols, _take(fields, rows))


def _take(fields: Fields, rows: int) -> tuple[int, int, int] | None:
    """The runs of rows that a part takes of its tensor; None for all of it."""
    if "take" not in fields.values:
        return None
    match fields.integers("take", 3, INT32_MAX):
        case (first, count, period) if count and first + count <= period and rows % count == 0:
            return first, count, period
    fields.wrong("take", f"must be first, count, period with whole runs that make {rows} rows")
    return None


_CODES = ("e2m1", "e4m3", *(f"int{bits}" for bits in range(2, 9)))
_ARRANGEMENTS = ("bytes", "signed", "nibbles", "stream", "awq")
_PARTS = ("codes", "scale", "zero", "factor", "order", "weight")


def _packed(fields: Fields) -> Packed:
    scale, packing = fields.object("scale"), None
    if fields.values.get("packing") is not None:
        how = fields.object("packing")
        packing = Packing(
            arrangement=how.choice("arrangement", _ARRANGEMENTS),
            transposed=how.boolean("transposed"),
            zero_bias=how.integer("zero_bias", 0, 1),
            factor_divides=how.boolean("factor_divides"),
        )
    rows, named = fields.integer("rows", 1), fields.object("tensors")
    stack = fields.integer("stack", 1, 1 << 16) if "stack" in fields.values else 1
    take = _take(fields, rows * stack)
    tensors = {part: named.text(part) for part in _PARTS if part in named.values}
    packed = Packed(
        format=fields.text("format"),
        rows=rows,
        cols=fields.integer("cols", 1),
        code=fields.choice("code", _CODES),
        scale=scale.choice("dtype", tuple(SCALE_BYTES)),
        scale_rows=scale.integer("rows", 0, 1 << 20),
        group=scale.integer("group", 0, 1 << 20),
        zero=fields.boolean("zero"),
        factor=fields.boolean("factor"),
        packing=packing,
        tensors=tensors,
        stack=stack,
        take=take,
        each="each" in fields.values and fields.boolean("each"),
    )
    _check_stack(fields, packed)
    if take is not None and rows % take[1] and take[1] % rows:
        fields.wrong("take", f"must have whole matrices of {rows} rows, or whole parts of one")
    wanted = ["weight"]
    if packing is not None:
        wanted = ["codes", "scale", *["zero"] * packed.zero, *["factor"] * packed.factor]
    for part in wanted:
        if part not in tensors:
            fields.wrong("tensors", f"must name {part}")
    if packed.group % 8:
        fields.wrong("scale", f"group must be a multiple of 8, is {packed.group}")
    return packed


def _check_stack(fields: Fields, packed: Packed) -> None:
    """What lies with other matrices in its tensors must be read by rows alone."""
    packing, take, whole = packed.packing, packed.take, packed.scale_rows
    if packed.each:
        if take is not None or not all(EXPERT in name for name in packed.tensors.values()):
            fields.wrong("each", f"is for tensors whose names hold {EXPERT}, without take")
        return
    if packing is None or (packed.stack == 1 and take is None):
        return
    if packing.transposed or packing.arrangement == "awq" or packed.zero:
        fields.wrong("packing", "must be by rows, without zero points, where matrices lie together")
    if "order" in packed.tensors:
        fields.wrong("tensors", "must name no order where matrices lie together")
    if take is not None and take[1] != packed.rows:
        fields.wrong("take", "must have whole matrices of packed tensors")
    if take is not None and whole > 1 and (take[0] % whole or take[2] % whole):
        fields.wrong("take", f"must begin and end with blocks of {whole} rows")


def _rope(fields: Fields) -> Rope:
    inv_freq = fields.numbers("inv_freq", 4096)
    return Rope(inv_freq, fields.number("scale"), fields.integer("positions", 1, 1 << 24))


def _check_layout(fields: Fields, weight: Weight) -> None:
    if (
        weight.packed is None
        and weight.layout == "panel"
        and weight.dtype not in ("float32", "bfloat16")
    ):
        fields.wrong("layout", f"panel is for float32 and bfloat16, not {weight.dtype}")
    if weight.rope is None and weight.packed is None:
        if len({part.cols for part in weight.parts}) > 1:
            fields.wrong("parts", "must all have the same cols")
        each, rest = divmod(sum(part.rows for part in weight.parts), weight.stack)
        if weight.stack > 1 and (rest or any(part.rows % each for part in weight.parts)):
            fields.wrong("stack", "must divide all rows so that each part has whole matrices")
        if weight.interleave and (weight.stack > 1 or any(part.take for part in weight.parts)):
            fields.wrong("interleave", "must be 0 where parts are stacked or taken in runs")
        if weight.interleave and len({part.rows for part in weight.parts}) > 1:
            fields.wrong("parts", "must all have the same rows where interleave is used")
    expected = laid_out_shape(weight)
    if weight.shape != expected:
        fields.wrong("shape", f"is {list(weight.shape)}, parts and layout give {list(expected)}")


def read_cache(fields: Fields) -> CacheSchema:
    """Read `cache`."""
    fields.integer("page_tokens", PAGE_TOKENS, PAGE_TOKENS)
    page_bytes = fields.integer("page_bytes", 1, SIZE_MAX)
    state_bytes = 0
    if "state_bytes" in fields.values:
        state_bytes = fields.integer("state_bytes", 1, SIZE_MAX)
    groups = []
    for item in fields.objects("groups", 64):
        kind = item.choice("kind", ("full", "window", "state"))
        window = item.optional_integer("window", 1)
        if (kind == "window") != (window is not None):
            item.wrong("window", "must be an integer for kind window, null for kind full or state")
        layers = item.integers("layers", 4096, INT32_MAX)
        if not layers:
            item.wrong("layers", "must name at least one layer")
        name, per_request = item.identifier("name"), kind == "state"
        window = STATE_WINDOW if per_request else window
        groups.append(CacheGroup(name, window, layers, per_request))
    if not groups:
        fields.wrong("groups", "must hold at least one group")
    each_once(fields, "groups", (group.name for group in groups))
    states = sum(group.per_request for group in groups)
    if states != bool(state_bytes):
        fields.wrong("state_bytes", f"must be there for one group of kind state, {states} are")
    return CacheSchema(page_bytes, tuple(groups), state_bytes)


def read_args(fields: Fields) -> ArgsSchema:
    """Read `args`."""
    words = fields.integer("words", 1)
    max_tokens, max_rows = fields.integer("max_tokens", 1), fields.integer("max_rows", 1)
    max_pages = fields.integer("max_pages", 1)
    entries = []
    for item in fields.objects("fields", 256):
        bits = item.choice("bits", ("int32", "float32"))
        shape = read_shape(item, "shape")
        entry = ArgsField(item.identifier("name"), item.integer("offset"), shape, bits)
        if entry.offset + elements(shape) > words:
            item.wrong("offset", f"field ends at {entry.offset + elements(shape)} of {words} words")
        entries.append(entry)
    each_once(fields, "fields", (entry.name for entry in entries))
    return ArgsSchema(words, max_tokens, max_rows, max_pages, tuple(entries))


def read_rules(fields: Fields) -> RulesSchema:
    """Read `rules`."""
    words = fields.integer("words", 1, SIZE_MAX)
    entries = []
    for item in fields.objects("fields", 256):
        bits = item.choice("bits", ("int32", "float32"))
        shape = read_shape(item, "shape")
        entry = ArgsField(item.identifier("name"), item.integer("offset"), shape, bits)
        if entry.offset + elements(shape) > words:
            item.wrong("offset", f"field ends at {entry.offset + elements(shape)} of {words} words")
        entries.append(entry)
    each_once(fields, "fields", (entry.name for entry in entries))
    rows = fields.integer("logprob_words", 1, 1 << 16), fields.integer("mask_words", 1, 1 << 24)
    return RulesSchema(words, *rows, tuple(entries))


def read_plan(fields: Fields) -> Plan:
    """Read one entry of `plans`."""
    phase = fields.choice("phase", ("decode", "mixed"))
    size = fields.integer("size", 1)
    return Plan(
        id=fields.integer("id"),
        phase=phase,
        size=size,
        logit_rows=fields.integer("logit_rows", 1),
        workspace_bytes=fields.integer("workspace_bytes", 0, SIZE_MAX),
    )
