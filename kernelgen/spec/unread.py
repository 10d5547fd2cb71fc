"""Owns the check of config keys that no reader asked for: what changes the result is refused."""

from __future__ import annotations

import re
from typing import Any

from kernelgen.core.errors import quote
from kernelgen.core.jsonio import json_kind
from kernelgen.spec.fields import Fields

# Beginnings of words in key names that speak of what a model computes. An unread key with such a
# word and anything but a neutral value would be ignored in silence: wrong text instead of an error.
_WORDS = (
    "quant", "softcap", "logit", "multiplier", "scale", "scaling", "rope", "rotary", "alibi",
    "window", "sliding", "sink", "expert", "moe", "router", "chunk", "qk", "bias", "layernorm",
    "mtp", "nextn", "hyper", "cross", "encoder", "vision", "audio", "lora", "adapter", "residual",
    "parallel", "clip", "mamba", "ssm", "conv", "compress", "latent", "sparse",
    "mup", "multi", "gate", "gated", "share", "shared",
)  # fmt: skip
_NAMES = {"layer_types", "mlp_only_layers", "text_config", "auto_map", "position_embedding_type",
          "head_dim", "index_topk", "query_pre_attn_scalar"}  # fmt: skip
# The same words, but only about training, or about how a framework runs the model.
_HARMLESS = {
    "router_aux_loss_coef",
    "router_z_loss_coef",
    "output_router_logits",
    "encoder_no_repeat_ngram_size",
}
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 0.0, [], {})


def refuse_unread(fields: Fields) -> None:
    """Notes every unread key that would change the result; neutral are null, false, 0 and empty."""
    for name, value in fields.unused().items():
        if name in _HARMLESS or not _speaks(name.lower()):
            continue
        if any(value == n and type(value) is type(n) for n in _NEUTRAL):
            continue
        shown = json_kind(value) if isinstance(value, (dict, list)) else quote(value)
        where = name if name.isidentifier() and len(name) <= 80 else quote(name)
        fields.refuse(where, f"is {shown}, which this architecture does not know", "no such field")


def _speaks(name: str) -> bool:
    words = [word for word in re.split(r"[^a-z0-9]+", name) if word]
    return name in _NAMES or any(word.startswith(_WORDS) for word in words)
