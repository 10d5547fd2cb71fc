"""Owns how Quark announces its formats: one for all, others by layer, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.core.errors import UsageError, quote
from kernelgen.formats.announcement import (
    EVERY,
    WHERE,
    Announcement,
    Scheme,
    names_in,
    unsupported,
)
from kernelgen.formats.matching import Matcher, wildcard_or_regex

_KNOWN = "fp8_e4m3 (per_tensor, per_channel), fp4 (per_group 32, scales e8m0)"


def read_quark(config: Mapping[str, Any], half: bool) -> Announcement:
    """Layers with a format of their own before the one for all; `exclude` wins."""
    rules: list[tuple[Matcher, Scheme | None]] = []
    layers = config.get("layer_quant_config") or {}
    if not isinstance(layers, dict):
        raise UsageError(f"is {quote(layers)}", where=f"{WHERE}.layer_quant_config",
                         allowed="an object")  # fmt: skip
    for name, values in layers.items():
        rules.append((wildcard_or_regex(name), _scheme(values, f"layer_quant_config.{name}")))
    if config.get("global_quant_config") is not None:
        rules.append((EVERY, _scheme(config["global_quant_config"], "global_quant_config")))
    if not rules:
        raise UsageError("names no format", where=f"{WHERE}.global_quant_config")
    ignore = tuple(wildcard_or_regex(name) for name in names_in(config, "exclude"))
    cache = config.get("kv_cache_quant_config")
    return Announcement("quark", tuple(rules), ignore, "fp8" if cache else "")


def _scheme(values: Any, field: str) -> Scheme | None:
    """The weight's part; what activations become is not followed."""
    weight = values.get("weight") if isinstance(values, dict) else None
    if weight is None and isinstance(values, dict):
        return None
    if not isinstance(weight, dict):
        raise UsageError(f"is {quote(values)}", where=f"{WHERE}.{field}", allowed="an object")
    kind, scheme, group = weight.get("dtype"), weight.get("qscheme"), weight.get("group_size")
    if kind == "fp8_e4m3" and scheme in ("per_tensor", "per_channel"):
        return Scheme("fp8_tensor" if scheme == "per_tensor" else "fp8_channel", "float8")
    scale = weight.get("scale_format", "e8m0")
    if kind == "fp4" and scheme == "per_group" and group in (32, None) and scale == "e8m0":
        return Scheme("mxfp4", "nibbles_plain")
    told = f"{kind}, {scheme}, group {group}, scales {scale}"
    raise unsupported(f"{field}.weight", told, _KNOWN)
