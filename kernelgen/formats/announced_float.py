"""Owns how FP8 checkpoints and ModelOpt announce their formats."""

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
    names_in,
    not_converted,
    unsupported,
)
from kernelgen.formats.matching import Matcher


def read_fp8(config: Mapping[str, Any], half: bool) -> Announcement:
    """Native FP8: DeepSeek's blocks, or one scale a matrix."""
    fmt, block = config.get("fmt", "e4m3"), config.get("weight_block_size")
    if fmt != "e4m3":
        raise unsupported("fmt", fmt, "e4m3")
    if block not in (None, [128, 128]):
        raise unsupported("weight_block_size", block, "[128, 128]")
    scheme = Scheme("fp8_block128", "float8_inv") if block else Scheme("fp8_tensor", "float8")
    rules = ((HEAD, None), (EVERY, scheme))
    return Announcement("fp8", rules, not_converted(config))


def read_mxfp4(config: Mapping[str, Any], half: bool) -> Announcement:
    """gpt-oss and its like: all but what the list names; the header says where that is too much."""
    rules = ((HEAD, None), (EVERY, Scheme("mxfp4", "nibbles_plain")))
    return Announcement("mxfp4", rules, not_converted(config))


_MODELOPT = {
    "FP8": Scheme("fp8_tensor", "float8"),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme("fp8_channel", "float8"),
    "FP8_PB_WO": Scheme("fp8_block128", "float8"),
    "FP8_BLOCK_SCALES": Scheme("fp8_block128", "float8"),
    "MXFP8": Scheme("mxfp8", "float8"),
    "NVFP4": Scheme("nvfp4", "nvfp4_factor"),
    "W4A16_NVFP4": Scheme("nvfp4", "nvfp4_factor"),
}


def read_modelopt(config: Mapping[str, Any], half: bool) -> Announcement:
    """config.json's form, or `quantization` of the side file; mixed ones name every layer."""
    inner = config.get("quantization", config)
    if not isinstance(inner, dict):
        raise UsageError(f"is {quote(inner)}", where=f"{WHERE}.quantization", allowed="an object")
    ignore = [Matcher("wildcard", n) for n in names_in(inner, "exclude_modules", "ignore")]
    cache = inner.get("kv_cache_quant_algo") or ("fp8" if inner.get("kv_cache_scheme") else "")
    rules: list[tuple[Matcher, Scheme | None]] = []
    if inner.get("quant_algo") == "MIXED_PRECISION":
        layers = inner.get("quantized_layers")
        if not isinstance(layers, dict):
            raise UsageError("names no layers", where=f"{WHERE}.quantized_layers")
        for name, values in layers.items():
            algorithm = values.get("quant_algo") if isinstance(values, dict) else values
            rules.append((Matcher("exact", name), _modelopt_scheme(algorithm)))
    else:
        rules.append((EVERY, _modelopt_scheme(inner.get("quant_algo"))))
    return Announcement("modelopt", tuple(rules), tuple(ignore), str(cache).lower())


def _modelopt_scheme(algorithm: Any) -> Scheme:
    if algorithm not in _MODELOPT:
        raise unsupported("quant_algo", algorithm, ", ".join((*_MODELOPT, "MIXED_PRECISION")))
    return _MODELOPT[algorithm]
