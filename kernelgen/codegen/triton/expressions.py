"""Owns the Triton spelling of scalar expressions, dtypes and names."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence

from kernelgen.core.dtypes import BFLOAT16, FLOAT8, FLOAT32, INT32, UINT8, DType
from kernelgen.formats import WeightFormat
from kernelgen.ir.expr import Expr

PRECISE = ', input_precision="ieee"'
"""of a product of float32: multiplied as such, not rounded to tf32 on the way to tensor cores"""
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_EXP = "tl.extra.libdevice.exp"
"""exact to an ulp or two at any argument; `tl.exp` rounds the argument in units of log2 first"""
_SPELLED: Mapping[str, Callable[..., str]] = {
    "exp": lambda a: f"{_EXP}({a})",
    "rsqrt": lambda a: f"tl.rsqrt({a})",
    "tanh": lambda a: f"tl.extra.libdevice.tanh({a})",
    "sigmoid": lambda a: f"(1.0 / (1.0 + {_EXP}(-{a})))",
    "silu": lambda a: f"({a} / (1.0 + {_EXP}(-{a})))",
    "max": lambda a, b: f"tl.maximum({a}, {b})",
    "min": lambda a, b: f"tl.minimum({a}, {b})",
}
_ELEMENTS = {FLOAT32: "fp32", BFLOAT16: "bf16", INT32: "i32", UINT8: "u8", FLOAT8: "u8"}
_TYPES = {FLOAT32: "tl.float32", BFLOAT16: "tl.bfloat16", INT32: "tl.int32"}


def element_type(dtype: DType) -> str:
    """The element in a compiler signature: `bf16` in `*bf16`. Packed matrices are bytes, and so are
    8-bit floats, which not every SM knows."""
    return "u8" if isinstance(dtype, WeightFormat) else _ELEMENTS[dtype]


def triton_type(dtype: DType) -> str:
    """The type in kernel text: `tl.bfloat16`."""
    return _TYPES[dtype]


def triton_name(name: str) -> str:
    """A value's name as a Python identifier that no name of a template meets: theirs are one word.

    `attn.q` → `attn_q`, `x` → `x_`.
    """
    clean = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "value"
    if clean[0].isdigit():
        clean = f"v_{clean}"
    if "_" not in clean or keyword.iskeyword(clean):
        clean += "_"
    return clean


def triton_expr(expr: Expr, inputs: Sequence[str], top: bool = True) -> str:
    """The expression on float32 operands."""
    if expr.fn == "arg":
        return inputs[expr.index]
    if expr.fn == "const":
        return repr(float(expr.value))
    args = [triton_expr(a, inputs, top=False) for a in expr.args]
    if expr.fn in _INFIX:
        text = f"{args[0]} {_INFIX[expr.fn]} {args[1]}"
        return text if top else f"({text})"
    if expr.fn == "neg":
        return f"-{args[0]}" if top else f"(-{args[0]})"
    return _SPELLED[expr.fn](*args)


def rounded(text: str, dtype: DType) -> str:
    """The float32 value once stored as `dtype`: what ends an op, fused or not."""
    return text if dtype == FLOAT32 else f"({text}).to({triton_type(dtype)}).to(tl.float32)"


def widened(text: str, dtype: DType) -> str:
    """A loaded value as float32."""
    return text if dtype == FLOAT32 else f"{text}.to(tl.float32)"


def stored(text: str, dtype: DType) -> str:
    """A float32 value as it is stored; rounds to nearest even."""
    return text if dtype == FLOAT32 else f"{text}.to({triton_type(dtype)})"
