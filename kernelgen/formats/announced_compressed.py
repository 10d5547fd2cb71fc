"""Owns how compressed-tensors announces its formats: groups of targets with their schemes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.core.errors import UsageError, quote
from kernelgen.formats.announcement import (
    EVERY,
    WHERE,
    Announcement,
    Scheme,
    integer_name,
    names_in,
    unsupported,
)
from kernelgen.formats.matching import Matcher, named_or_regex


def read_compressed(config: Mapping[str, Any], half: bool) -> Announcement:
    """Groups of targets; a class name means every product."""
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise UsageError(f"is {quote(groups)}", where=f"{WHERE}.config_groups", allowed="an object")
    rules: list[tuple[Matcher, Scheme | None]] = []
    for key, group in sorted(groups.items()):
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            raise UsageError("names no weights", where=f"{WHERE}.config_groups.{key}")
        form = group.get("format") or config.get("format")
        scheme = _compressed_scheme(group["weights"], form, half)
        for target in names_in(group, "targets"):
            pattern = EVERY if target == "Linear" else named_or_regex(target)
            rules.append((pattern, scheme))
    ignore = tuple(named_or_regex(name) for name in names_in(config, "ignore"))
    cache = config.get("kv_cache_scheme")
    return Announcement("compressed-tensors", tuple(rules), ignore, "fp8" if cache else "")


def _compressed_scheme(weights: Mapping[str, Any], form: Any, half: bool) -> Scheme:
    bits, kind = weights.get("num_bits"), weights.get("type")
    strategy, group = weights.get("strategy"), weights.get("group_size")
    if weights.get("actorder") in ("group", "dynamic"):
        raise unsupported("actorder", weights["actorder"], "null, weight, static")
    if kind == "float" and bits == 8:
        return Scheme(_float8(strategy, group, weights), "float8")
    if kind == "float" and bits == 4:
        if strategy == "tensor_group" and group in (16, None):
            return Scheme("nvfp4", "nvfp4_divisor")
        if strategy == "group" and group == 32:
            return Scheme("mxfp4", "nibbles")
    if kind == "int" and strategy in ("channel", "group", "tensor_group"):
        zero = weights.get("symmetric", True) is False
        whole = strategy == "channel"
        name = integer_name(bits, -1 if whole else group, half, zero, "num_bits")
        plain = form in ("int-quantized", "naive-quantized")
        if plain and (bits != 8 or not whole):
            raise unsupported("format", form, "8 bits with one scale a row, or pack-quantized")
        return Scheme(name, "int8_bytes" if plain else "packed_int")
    told = f"{bits}-bit {kind}, strategy {strategy}, group {group}"
    known = (
        "8-bit float (tensor, channel, block, group 32), 4-bit float (tensor_group 16, group 32)"
    )
    raise unsupported("weights", told, f"{known}, 2- to 8-bit int (channel, group)")


def _float8(strategy: Any, group: Any, weights: Mapping[str, Any]) -> str:
    if strategy == "block" and weights.get("block_structure") not in (None, [128, 128]):
        raise unsupported("block_structure", weights["block_structure"], "[128, 128]")
    if strategy == "group" and group != 32:
        raise unsupported("group_size", group, "32")
    known = {
        "tensor": "fp8_tensor",
        "channel": "fp8_channel",
        "block": "fp8_block128",
        "group": "mxfp8",
    }
    if strategy not in known:
        raise unsupported("strategy", strategy, ", ".join(known))
    return known[strategy]
