"""Owns the config fields that decoder-only models share: sizes, ids, dtype, with their bounds."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from kernelgen.core.errors import quote
from kernelgen.spec.fields import Fields
from kernelgen.spec.model import Activation

ACTIVATIONS = {a.value: a for a in Activation} | {"swish": Activation.SILU}
_STORED = {d.name: d for d in (BFLOAT16, FLOAT16, FLOAT32)}
_MAX_HIDDEN, _MAX_HEADS, _MAX_HEAD_DIM, _MAX_LAYERS = 1 << 16, 1024, 1024, 512
_MAX_INTERMEDIATE, _MAX_VOCAB, _MAX_POSITIONS = 1 << 20, 1 << 22, 1 << 22


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a dense decoder."""

    layers: int
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int


def read_sizes(
    fields: Fields,
    *,
    max_positions: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> DecoderSizes:
    """Sizes from the usual keys.

    The keyword arguments are what the architecture takes for a key that is absent; None means:
    as many kv heads as heads, hidden / heads for a head. A null always means the latter.
    """
    hidden = fields.integer("hidden_size", 1, _MAX_HIDDEN)
    heads = fields.integer("num_attention_heads", 1, _MAX_HEADS)
    absent_kv = kv_heads if kv_heads and fields.absent("num_key_value_heads") else heads
    groups = fields.integer("num_key_value_heads", 1, _MAX_HEADS, absent_kv, nullable=True)
    fields.require(
        heads % groups == 0 or not fields.sound("num_attention_heads", "num_key_value_heads"),
        "num_key_value_heads",
        f"is {groups}",
        f"a divisor of num_attention_heads = {heads}",
    )
    if "head_dim" not in fields and (head_dim is None or not fields.absent("head_dim")):
        fields.require(
            hidden % heads == 0 or not fields.sound("hidden_size", "num_attention_heads"),
            "hidden_size",
            f"is {hidden} without a head_dim",
            f"a multiple of num_attention_heads = {heads}",
        )
        head_dim = min(max(hidden // heads, 1), _MAX_HEAD_DIM)
    return DecoderSizes(
        layers=fields.integer("num_hidden_layers", 1, _MAX_LAYERS),
        hidden=hidden,
        intermediate=fields.integer("intermediate_size", 1, _MAX_INTERMEDIATE),
        vocab=fields.integer("vocab_size", 1, _MAX_VOCAB),
        heads=heads,
        kv_heads=groups,
        head_dim=fields.integer("head_dim", 1, _MAX_HEAD_DIM, head_dim or 1, nullable=True),
        max_positions=fields.integer("max_position_embeddings", 1, _MAX_POSITIONS, max_positions),
    )


def read_eps(fields: Fields, default: float) -> float:
    """`rms_norm_eps`; zero would divide by zero on padding rows."""
    return fields.number("rms_norm_eps", 1e-12, 0.1, default)


def read_stored_dtype(fields: Fields) -> DType:
    """`dtype` or, in older files, `torch_dtype`; bfloat16 when neither is there."""
    new, old = fields.raw("dtype"), fields.raw("torch_dtype")
    if new is not None and old is not None and new != old:
        fields.require(False, "dtype", f"is {quote(new)}, torch_dtype {quote(old)}", "one value")
    if new is None and old is None:
        return BFLOAT16
    return fields.choice("dtype" if new is not None else "torch_dtype", _STORED)


def _id_limit(fields: Fields, vocab: int) -> int:
    return vocab if fields.sound("vocab_size") else _MAX_VOCAB


def read_eos_ids(fields: Fields, vocab: int, default: int | None) -> tuple[int, ...]:
    """`eos_token_id`: an id, a list of at most 64 ids, or null for none."""
    value = fields.raw("eos_token_id")
    if fields.absent("eos_token_id"):
        return () if default is None or default >= vocab else (default,)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    limit = _id_limit(fields, vocab)
    good = len(ids) <= 64 and all(type(i) is int and 0 <= i < limit for i in ids)
    shown = "an array" if isinstance(value, list) else quote(value)
    fields.require(good, "eos_token_id", f"is {shown}", f"null, or ids from 0 to {limit - 1}")
    return tuple(dict.fromkeys(ids)) if good else ()


def read_bos_id(fields: Fields, vocab: int, default: int | None) -> int | None:
    """`bos_token_id`: an id, or null for none."""
    if fields.absent("bos_token_id"):
        return default if default is not None and default < vocab else None
    if fields.raw("bos_token_id") is None:
        return None
    return fields.integer("bos_token_id", 0, _id_limit(fields, vocab) - 1)
