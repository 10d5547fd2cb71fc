"""Owns how GPTQ, AWQ and AutoRound announce their formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.core.errors import UsageError, quote
from kernelgen.formats.announcement import (
    EVERY,
    HEAD,
    WHERE,
    Announcement,
    Scheme,
    integer_name,
    not_converted,
    unsupported,
)
from kernelgen.formats.matching import Matcher, compiled


def read_gptq(config: Mapping[str, Any], half: bool) -> Announcement:
    """GPTQ in the order of K; what activations reordered is refused."""
    if config.get("desc_act") and config.get("group_size") != -1:
        raise unsupported("desc_act", True, "false: columns in the order of their activations"
                           " would be multiplied with other columns' scales")  # fmt: skip
    form = config.get("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise unsupported("checkpoint_format", form, "gptq, gptq_v2")
    zero = config.get("sym", True) is False
    kind = integer_name(config.get("bits"), config.get("group_size"), True, zero)
    head = () if config.get("lm_head") else ((HEAD, None),)
    rules = (*head, (EVERY, Scheme(kind, form)))
    return Announcement("gptq", rules, not_converted(config))


def read_awq(config: Mapping[str, Any], half: bool) -> Announcement:
    """AWQ as its `gemm` version packs it."""
    for key, value, good in (
        ("bits", 4, 4),
        ("version", "gemm", "gemm"),
        ("zero_point", True, True),
    ):
        found = config.get(key, value)
        if str(found).lower() != str(good).lower():
            raise unsupported(key, found, str(good).lower())
    kind = integer_name(4, config.get("group_size"), True, True)
    rules = ((HEAD, None), (EVERY, Scheme(kind, "awq")))
    return Announcement("awq", rules, not_converted(config))


_ROUND_PACKINGS = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round": "gptq_v2",
    "auto_round:auto_awq": "awq",
    "auto_round:llm_compressor": "",
    "auto_round:fp8": "float8_inv",
}


def read_auto_round(config: Mapping[str, Any], half: bool) -> Announcement:
    """Layers of `extra_config` (names or expressions) before the rule of the blocks."""
    packing = config.get("packing_format", "auto_round:auto_gptq")
    if packing not in _ROUND_PACKINGS:
        raise unsupported("packing_format", packing, ", ".join(_ROUND_PACKINGS))
    extra = config.get("extra_config") or {}
    if not isinstance(extra, dict):
        raise UsageError(f"is {quote(extra)}", where=f"{WHERE}.extra_config", allowed="an object")
    rules: list[tuple[Matcher, Scheme | None]] = []
    for name, values in extra.items():
        compiled(name)
        rules.append((Matcher("search", name), _rounded({**config, **values}, str(packing))))
    blocks = config.get("block_name_to_quantize") or config.get("to_quant_block_names") or ""
    blocks = blocks if isinstance(blocks, list) else [b for b in str(blocks).split(",") if b]
    rest = _rounded(config, str(packing))
    rules.append((HEAD, None))
    rules += [(Matcher("path", str(block).strip()), rest) for block in blocks]
    if not blocks:
        rules.append((EVERY, rest))
    return Announcement("auto-round", tuple(rules))


def _rounded(config: Mapping[str, Any], packing: str) -> Scheme | None:
    bits, kind = config.get("bits", 4), config.get("data_type", "int")
    if isinstance(bits, int) and bits >= 16:
        return None
    if packing == "auto_round:fp8" or kind in ("fp", "fp8", "fp8_e4m3"):
        block = config.get("weight_block_size")
        if block not in (None, [128, 128]):
            raise unsupported("weight_block_size", block, "[128, 128]")
        return Scheme(
            "fp8_block128" if block else "fp8_tensor", "float8_inv" if block else "float8"
        )
    if kind in ("mx_fp", "mx_fp4", "nv_fp", "nv_fp4", "nv_fp4_with_static_gs"):
        if bits != 4:
            raise unsupported("bits", bits, f"4 for data_type {kind}")
        mx = kind.startswith("mx")
        return Scheme("mxfp4", "nibbles") if mx else Scheme("nvfp4", "nvfp4_divisor")
    if kind != "int":
        raise unsupported("data_type", kind, "int, mx_fp, nv_fp, fp")
    name = _ROUND_PACKINGS[packing] or "packed_int"
    zero = name == "awq" or config.get("sym", True) is False
    return Scheme(
        integer_name(bits, config.get("group_size", 128), name != "packed_int", zero), name
    )
