"""Owns reading `quantization_config`: which modules are said to be quantised, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelgen.core.errors import UnsupportedError, quote
from kernelgen.formats.announced_compressed import read_compressed
from kernelgen.formats.announced_float import read_fp8, read_modelopt, read_mxfp4
from kernelgen.formats.announced_integer import read_auto_round, read_awq, read_gptq
from kernelgen.formats.announced_quark import read_quark
from kernelgen.formats.announcement import WHERE, Announcement

SIDE_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""what may hold it beside config.json: ModelOpt, and older GPTQ and AWQ"""
_Reader = Callable[[Mapping[str, Any], bool], Announcement]
_READERS: Mapping[str, _Reader] = {
    "fp8": read_fp8,
    "gptq": read_gptq,
    "awq": read_awq,
    "auto-round": read_auto_round,
    "compressed-tensors": read_compressed,
    "modelopt": read_modelopt,
    "modelopt_fp4": read_modelopt,
    "modelopt_mixed": read_modelopt,
    "mxfp4": read_mxfp4,
    "quark": read_quark,
}


def read_announcement(config: Mapping[str, Any], half: bool) -> Announcement:
    """The rules of a `quantization_config`; `half`: the model's own dtype is float16, and so are
    scales of which nothing else is said. `UnsupportedError` names what is not covered.
    """
    method = config.get("quant_method")
    if method is None and "quantization" in config:
        method = "modelopt"  # the side file hf_quant_config.json
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise UnsupportedError(
            f"quant_method is {quote(method)}", where=WHERE, allowed=", ".join(sorted(_READERS))
        )
    return reader(config, half)
