"""Owns turning `manifest.json` into a checked `Manifest`: every problem is listed."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path, PurePosixPath

from ..errors import ArtifactError, listing, shown
from .bounded_json import Json, read_json
from .fields import INT32_MAX, SIZE_MAX, Fields
from .manifest import (
    PAGE_TOKENS,
    ArgsField,
    ArgsSchema,
    CacheGroup,
    CacheSchema,
    Library,
    Manifest,
    Part,
    Plan,
    Rope,
    TensorSpec,
    Weight,
    elements,
    laid_out_shape,
)

ABI = 1
SCHEMA = 1
MAX_MANIFEST_BYTES = 256 << 20
MAX_ITEMS = 1 << 20
_LIBRARY = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*\.so")
WEIGHT_DTYPES = ("float32", "bfloat16", "float16", "int32", "int8", "uint8")


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest at `path`. Raises ArtifactError listing up to 20 problems."""
    values = read_json(path, MAX_MANIFEST_BYTES, ArtifactError)
    for key, known in (("abi", ABI), ("schema", SCHEMA)):
        if values.get(key) != known or isinstance(values.get(key), bool):
            raise ArtifactError(
                f"{path}: {key} is {shown(values.get(key))}, this runtime knows {known} only; "
                "build the model again with the kernelgen that belongs to this runtime"
            )
    problems: list[str] = []
    manifest = parse_manifest(values, problems)
    if problems:
        raise ArtifactError(listing(f"{path}: not a usable manifest", problems))
    return manifest


def parse_manifest(values: dict[str, Json], problems: list[str]) -> Manifest:
    """Build a Manifest from parsed JSON; it may be used only if `problems` stays empty."""
    top = Fields(values, "", problems)
    model, chat = top.object("model"), top.object("chat")
    args = _args(top.object("args"))
    cache = _cache(top.object("cache"))
    manifest = Manifest(
        name=top.text("name"),
        version=top.text("version"),
        architecture=top.text("architecture"),
        activation_dtype=top.choice("activation_dtype", ("float32", "bfloat16")),
        vocab=model.integer("vocab", 1),
        max_positions=model.integer("max_positions", 1),
        libraries=tuple(_libraries(top)),
        tensors=tuple(_tensor(item) for item in top.objects("tensors", MAX_ITEMS)),
        ignored=top.texts("ignored", 1024),
        weights=tuple(_weight(item) for item in top.objects("weights", MAX_ITEMS)),
        cache=cache,
        args=args,
        plans=tuple(_plan(item) for item in top.objects("plans", 4096)),
        eos_token_ids=chat.integers("eos_token_ids", 1024, INT32_MAX),
        bos_token_id=chat.optional_integer("bos_token_id"),
    )
    if not problems:
        # Relations between fields: only worth telling once each field is right by itself.
        _check_args(manifest, problems)
        _check_weights(manifest, problems)
        _check_plans(manifest, problems)
    return manifest


def _libraries(top: Fields) -> Iterable[Library]:
    found: list[Library] = []
    for target in top.objects("targets", 64):
        if target.text("target") != "cpu":
            continue
        for item in target.objects("libraries", 64):
            path = item.text("path")
            plain = PurePosixPath(path)
            if plain.is_absolute() or ".." in plain.parts or not _LIBRARY.fullmatch(path):
                item.wrong("path", f"must be a .so inside the artifact, is {shown(path)}")
            found.append(Library(item.identifier("isa"), path, item.boolean("measured")))
    if not found:
        top.wrong("targets", 'holds no library for target "cpu"')
    _unique(top, "targets", (library.isa for library in found))
    _unique(top, "targets", (library.path for library in found))
    return found


def _shape(fields: Fields, key: str) -> tuple[int, ...]:
    shape = fields.integers(key, 8)
    if 0 in shape or elements(shape) > SIZE_MAX:
        fields.wrong(key, f"sizes must be at least 1 and their product at most {SIZE_MAX}")
        return (1,)
    return shape


def _tensor(fields: Fields) -> TensorSpec:
    dtypes = fields.texts("dtypes", 16)
    if not dtypes:
        fields.wrong("dtypes", "must name at least one dtype")
    return TensorSpec(fields.text("name"), _shape(fields, "shape"), dtypes)


def _weight(fields: Fields) -> Weight:
    name, dtype = fields.text("name"), fields.choice("dtype", WEIGHT_DTYPES)
    shape, rope = _shape(fields, "shape"), None
    layout, interleave = "rows", 0
    parts: tuple[Part, ...] = ()
    if fields.values.get("source") == "checkpoint":
        layout = fields.choice("layout", ("rows", "panel"))
        interleave = fields.integer("interleave", 0, 1 << 20)
        parts = tuple(_part(item) for item in fields.objects("parts", 4096))
        if not parts:
            fields.wrong("parts", "must name at least one checkpoint tensor")
            parts = (Part("", 1, 1),)
    else:
        rope = _rope(fields.object("source").object("rope"))
        if dtype != "float32":
            fields.wrong("dtype", "a rope table is float32")
    weight = Weight(name, dtype, shape, layout, parts, interleave, rope)
    _check_layout(fields, weight)
    return weight


def _part(fields: Fields) -> Part:
    rows, cols = fields.integer("rows", 1), fields.integer("cols", 1)
    return Part(fields.text("tensor"), rows, cols)


def _rope(fields: Fields) -> Rope:
    inv_freq = fields.numbers("inv_freq", 4096)
    return Rope(inv_freq, fields.number("scale"), fields.integer("positions", 1, 1 << 24))


def _check_layout(fields: Fields, weight: Weight) -> None:
    if weight.layout == "panel" and weight.dtype not in ("float32", "bfloat16"):
        fields.wrong("layout", f"panel is for float32 and bfloat16, not {weight.dtype}")
    if weight.rope is None:
        if len({part.cols for part in weight.parts}) > 1:
            fields.wrong("parts", "must all have the same cols")
        if weight.interleave and len({part.rows for part in weight.parts}) > 1:
            fields.wrong("parts", "must all have the same rows where interleave is used")
    expected = laid_out_shape(weight)
    if weight.shape != expected:
        fields.wrong("shape", f"is {list(weight.shape)}, parts and layout give {list(expected)}")


def _cache(fields: Fields) -> CacheSchema:
    fields.integer("page_tokens", PAGE_TOKENS, PAGE_TOKENS)
    page_bytes = fields.integer("page_bytes", 1, SIZE_MAX)
    groups = []
    for item in fields.objects("groups", 64):
        kind = item.choice("kind", ("full", "window"))
        window = item.optional_integer("window", 1)
        if (kind == "window") != (window is not None):
            item.wrong("window", "must be an integer for kind window and null for kind full")
        layers = item.integers("layers", 4096, INT32_MAX)
        if not layers:
            item.wrong("layers", "must name at least one layer")
        groups.append(CacheGroup(item.identifier("name"), window, layers))
    if not groups:
        fields.wrong("groups", "must hold at least one group")
    _unique(fields, "groups", (group.name for group in groups))
    return CacheSchema(page_bytes, tuple(groups))


def _args(fields: Fields) -> ArgsSchema:
    words = fields.integer("words", 1)
    max_tokens, max_rows = fields.integer("max_tokens", 1), fields.integer("max_rows", 1)
    max_pages = fields.integer("max_pages", 1)
    entries = []
    for item in fields.objects("fields", 256):
        bits = item.choice("bits", ("int32", "float32"))
        shape = _shape(item, "shape")
        entry = ArgsField(item.identifier("name"), item.integer("offset"), shape, bits)
        if entry.offset + elements(shape) > words:
            item.wrong("offset", f"field ends at {entry.offset + elements(shape)} of {words} words")
        entries.append(entry)
    _unique(fields, "fields", (entry.name for entry in entries))
    return ArgsSchema(words, max_tokens, max_rows, max_pages, tuple(entries))


def _plan(fields: Fields) -> Plan:
    phase = fields.choice("phase", ("decode", "mixed"))
    workspace_bytes = fields.integer("workspace_bytes", 0, SIZE_MAX)
    return Plan(fields.integer("id"), phase, fields.integer("size", 1), workspace_bytes)


def _unique(fields: Fields, key: str, names: Iterable[object]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            fields.wrong(key, f"{shown(name)} appears {count} times")


def expected_args_fields(args: ArgsSchema, groups: Iterable[CacheGroup]) -> list[ArgsField]:
    """Return the fields that abi 1 asks for, with offset 0."""
    rows, whole, real = args.max_rows, "int32", "float32"
    fields = [
        ArgsField("counts", 0, (4,), whole),
        ArgsField("token_ids", 0, (args.max_tokens,), whole),
        ArgsField("row_slot", 0, (rows,), whole),
        ArgsField("row_query_start", 0, (rows + 1,), whole),
        ArgsField("row_seq_len", 0, (rows,), whole),
    ]
    for group in groups:
        fields.append(ArgsField(f"block_table.{group.name}", 0, (rows, args.max_pages), whole))
    fields += [ArgsField(name, 0, (rows,), whole) for name in ("logit_token", "logit_row")]
    fields += [ArgsField(name, 0, (rows,), real) for name in ("temperature", "top_p")]
    return [*fields, ArgsField("top_k", 0, (rows,), whole), ArgsField("seed", 0, (rows, 2), whole)]


def _check_args(manifest: Manifest, problems: list[str]) -> None:
    present = {field.name: field for field in manifest.args.fields}
    for wanted in expected_args_fields(manifest.args, manifest.cache.groups):
        found = present.get(wanted.name)
        if found is None:
            problems.append(f"args.fields: {wanted.name} is missing")
        elif (found.shape, found.bits) != (wanted.shape, wanted.bits):
            problems.append(
                f"args.fields: {wanted.name} is {found.bits} {list(found.shape)}, "
                f"abi {ABI} says {wanted.bits} {list(wanted.shape)}"
            )
    ordered = sorted(manifest.args.fields, key=lambda field: field.offset)
    for before, after in pairwise(ordered):
        if before.offset + elements(before.shape) > after.offset:
            problems.append(f"args.fields: {before.name} and {after.name} overlap")


def _check_weights(manifest: Manifest, problems: list[str]) -> None:
    top = Fields({}, "", problems)
    _unique(top, "tensors", (tensor.name for tensor in manifest.tensors))
    _unique(top, "weights", (weight.name for weight in manifest.weights))
    sizes = {tensor.name: elements(tensor.shape) for tensor in manifest.tensors}
    for weight in manifest.weights:
        for part in weight.parts:
            size = sizes.get(part.tensor)
            if size is None:
                problems.append(f"weights: {weight.name} needs {part.tensor}, not among tensors")
            elif size != part.rows * part.cols:
                problems.append(
                    f"weights: {weight.name} takes {part.rows} x {part.cols} of {part.tensor}, "
                    f"which has {size} elements"
                )
    for pattern in manifest.ignored:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            problems.append(f"ignored: {shown(pattern)} is not a regular expression")


def _check_plans(manifest: Manifest, problems: list[str]) -> None:
    top = Fields({}, "", problems)
    _unique(top, "plans", (plan.id for plan in manifest.plans))
    _unique(top, "plans", ((plan.phase, plan.size) for plan in manifest.plans))
    if not any(plan.phase == "mixed" for plan in manifest.plans):
        problems.append("plans: must hold at least one of phase mixed")
    for plan in manifest.plans:
        limit = manifest.args.max_rows if plan.phase == "decode" else manifest.args.max_tokens
        if plan.size > limit:
            problems.append(f"plans: {plan.phase} size {plan.size} exceeds args capacity {limit}")
