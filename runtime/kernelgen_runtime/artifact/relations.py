"""Owns what fields of a manifest must be to each other, once each is right by itself."""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from ..errors import shown
from .fields import Fields
from .manifest import (
    ArgsField,
    ArgsSchema,
    CacheGroup,
    Manifest,
    Model,
    Part,
    RulesSchema,
    Weight,
    elements,
    packed_parts,
)
from .sections import each_once

ABI = 1
DETAIL_FIELDS = ("min_p", "rules", "logprobs", "logprob_token", "mask")
"""of args, where the target has `rules`"""
STATE_FIELDS = ("state_from", "state_to", "state_mark", "state_mark_at")
"""of args, where a group keeps states"""
RULE_FIELDS = (
    *("repetition", "frequency", "presence", "free_position", "biases", "bad_words", "ends"),
    *(
        "dense",
        "told",
        "told_ids",
        "seen",
        "remembered",
        "first_generated",
        "width",
        "deduplicate",
        "key_low",
    ),
    *("key_high", "bias_ids", "bias_values", "end_ids", "bad_word_ids", "history", "bins"),
    "edited",
)
"""of `rules`, which the runtime writes or skips"""


def check_model(model: Model, problems: list[str]) -> None:
    """Note tensors named twice and expressions that are none."""
    each_once(Fields({}, "", problems), "tensors", (tensor.name for tensor in model.tensors))
    for pattern in model.ignored:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            problems.append(f"ignored: {shown(pattern)} is not a regular expression")


def check_target(manifest: Manifest, where: str, problems: list[str]) -> None:
    """Note args, weights and plans of one target that do not fit together."""
    found = Fields({}, where, problems)
    _check_args(manifest, found)
    if manifest.rules is not None:
        _check_rules(manifest, manifest.rules, found)
    _check_weights(manifest, found)
    _check_plans(manifest, found)


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
        if group.per_request:
            fields += [ArgsField(name, 0, (rows,), whole) for name in STATE_FIELDS]
            continue
        fields.append(ArgsField(f"block_table.{group.name}", 0, (rows, args.max_pages), whole))
    fields += [ArgsField(name, 0, (rows,), whole) for name in ("logit_token", "logit_row")]
    fields += [ArgsField(name, 0, (rows,), real) for name in ("temperature", "top_p")]
    return [*fields, ArgsField("top_k", 0, (rows,), whole), ArgsField("seed", 0, (rows, 2), whole)]


def tensor_rows(part: Part) -> int:
    """Return the rows that the tensor behind a part must have."""
    if part.take is None:
        return part.rows
    _, count, period = part.take
    return part.rows // count * period


def _check_args(manifest: Manifest, found: Fields) -> None:
    present = {field.name: field for field in manifest.args.fields}
    for wanted in expected_args_fields(manifest.args, manifest.cache.groups):
        field = present.get(wanted.name)
        if field is None:
            found.wrong("args.fields", f"{wanted.name} is missing")
        elif (field.shape, field.bits) != (wanted.shape, wanted.bits):
            found.wrong(
                "args.fields",
                f"{wanted.name} is {field.bits} {list(field.shape)}, "
                f"abi {ABI} says {wanted.bits} {list(wanted.shape)}",
            )
    ordered = sorted(manifest.args.fields, key=lambda field: field.offset)
    for before, after in pairwise(ordered):
        if before.offset + elements(before.shape) > after.offset:
            found.wrong("args.fields", f"{before.name} and {after.name} overlap")


def _check_rules(manifest: Manifest, rules: RulesSchema, found: Fields) -> None:
    rows = {field.name: field.shape for field in manifest.args.fields}
    for name in DETAIL_FIELDS:
        if rows.get(name) != (manifest.args.max_rows,):
            found.wrong("args.fields", f"{name} must be [{manifest.args.max_rows}] beside rules")
    fields = {field.name: field for field in rules.fields}
    for name in RULE_FIELDS:
        if name not in fields:
            found.wrong("rules.fields", f"{name} is missing")
    for name in ("bins", "edited"):
        if name in fields and fields[name].shape != (manifest.vocab,):
            found.wrong("rules.fields", f"{name} must be [{manifest.vocab}]")
    words = -(-manifest.vocab // 32)
    if "allowed" in fields and (fields["allowed"].shape != (words,) or "guided" not in fields):
        found.wrong("rules.fields", f"allowed must be [{words}] beside guided")
    ends = ("bins", "edited")
    if all(name in fields for name in ends) and fields["bins"].offset > fields["edited"].offset:
        found.wrong("rules.fields", "edited must come behind bins")


def _check_weights(manifest: Manifest, found: Fields) -> None:
    each_once(found, "weights", (weight.name for weight in manifest.weights))
    sizes = {tensor.name: elements(tensor.shape) for tensor in manifest.model.tensors}
    for weight in manifest.weights:
        _check_packed(weight, sizes, found)
        for part in weight.parts:
            size = sizes.get(part.tensor)
            if size is None:
                found.wrong("weights", f"{weight.name} needs {part.tensor}, not among tensors")
            elif size != tensor_rows(part) * part.cols:
                found.wrong(
                    "weights",
                    f"{weight.name} takes {part.rows} x {part.cols} of {part.tensor}, "
                    f"which has {size} elements",
                )


def _check_packed(weight: Weight, sizes: Mapping[str, int], found: Fields) -> None:
    packed = weight.packed
    if packed is None:
        return
    for one in packed.alone:
        for part, (rows, cols) in packed_parts(one).items():
            name = one.tensors[part]
            if sizes.get(name) != rows * cols:
                has = f"has {sizes[name]} elements" if name in sizes else "is not among tensors"
                told = f"{weight.name} takes {rows} x {cols} of {name}, which {has}"
                found.wrong("weights", told)


def _check_plans(manifest: Manifest, found: Fields) -> None:
    each_once(found, "plans", (plan.id for plan in manifest.plans))
    each_once(found, "plans", ((plan.phase, plan.size) for plan in manifest.plans))
    if not any(plan.phase == "mixed" for plan in manifest.plans):
        found.wrong("plans", "must hold at least one of phase mixed")
    args = manifest.args
    for plan in manifest.plans:
        limit = args.max_rows if plan.phase == "decode" else args.max_tokens
        if plan.size > limit:
            found.wrong("plans", f"{plan.phase} size {plan.size} exceeds args capacity {limit}")
        most = min(plan.size, args.max_rows)
        if plan.logit_rows > most:
            found.wrong("plans", f"{plan.phase} size {plan.size} has at most {most} logit_rows")
