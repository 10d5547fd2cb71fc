"""Owns the C++ spelling of scalar expressions, dtypes and names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelgen.core.dtypes import BFLOAT16, FLOAT8, FLOAT32, INT32, DType
from kernelgen.formats import WeightFormat
from kernelgen.ir.expr import Expr

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_CALLS = {
    "exp": "kg::exp",
    "rsqrt": "kg::rsqrt",
    "tanh": "kg::tanh",
    "sigmoid": "kg::sigmoid",
    "silu": "kg::silu",
    "max": "kg::larger",
    "min": "kg::smaller",
}
_TYPES = {FLOAT32: "float", BFLOAT16: "kg::bf16", FLOAT8: "kg::e4m3", INT32: "int32_t"}
_KEYWORDS = frozenset(
    {"float", "int", "auto", "const", "static", "double", "t", "i", "h", "me", "step", "operand"}
)


def cpp_type(dtype: DType) -> str:
    """The element type in kernels."""
    return _packed_type(dtype) if isinstance(dtype, WeightFormat) else _TYPES[dtype]


def _packed_type(kind: WeightFormat) -> str:
    """The type of `lib/packed.h` that says how a packed matrix is read."""
    code = f"Int{kind.code.stored_bits}" if kind.code.is_integer else kind.code.name.upper()
    short = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
    scale = f"Scale{short.get(kind.scale.name, kind.scale.name.upper())}"
    flags = f"{str(kind.zero).lower()}, {str(kind.row_factor).lower()}"
    return f"kg::Packed<kg::{code}, kg::{scale}, {kind.group}, {flags}>"


def cpp_float(value: float) -> str:
    """A float literal that reads back as the same float32."""
    text = f"{value:.9g}"
    return f"{text if any(c in text for c in '.en') else text + '.0'}f"


def cpp_name(name: str) -> str:
    """A value's name as a C++ identifier; only [a-z0-9_] can come out."""
    clean = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "value"
    if clean in _KEYWORDS or clean[0].isdigit():
        clean += "_"
    return clean


def cpp_expr(expr: Expr, inputs: Sequence[str], top: bool = True) -> str:
    """The expression on C++ float operands."""
    if expr.fn == "arg":
        return inputs[expr.index]
    if expr.fn == "const":
        return cpp_float(expr.value)
    args = [cpp_expr(a, inputs, top=False) for a in expr.args]
    if expr.fn in _INFIX:
        text = f"{args[0]} {_INFIX[expr.fn]} {args[1]}"
        return text if top else f"({text})"
    if expr.fn == "neg":
        return f"-{args[0]}" if top else f"(-{args[0]})"
    plain = [
        a[1:-1] if a.startswith("(") and a.endswith(")") and _balanced(a[1:-1]) else a for a in args
    ]
    return f"{_CALLS[expr.fn]}({', '.join(plain)})"


def _balanced(text: str) -> bool:
    """Whether parentheses close in order, so that an outer pair may be dropped."""
    depth = 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if depth < 0:
            return False
    return depth == 0


def rounded(text: str, dtype: DType) -> str:
    """The value once stored as `dtype`: what ends an op, fused or not."""
    return text if dtype == FLOAT32 else f"kg::as<{cpp_type(dtype)}>({text})"


def stored(text: str, dtype: DType) -> str:
    """The bits that are stored."""
    return text if dtype == FLOAT32 else f"kg::from_float<{cpp_type(dtype)}>({text})"
