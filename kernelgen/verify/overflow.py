"""Owns the check that the interpreter makes of index arithmetic: no signed number may wrap.

On a GPU an int32 product beyond 2³¹ wraps without a word and addresses other memory. Unsigned
numbers wrap on purpose (hashes do) and are left alone.
"""

from __future__ import annotations

import operator
from typing import Any

_OPERATIONS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
_WIDEST = 64


def install_overflow_check(interpreter: Any) -> None:
    """Let the interpreter raise `OverflowError` at the operation whose result does not fit.

    Triton has such a check itself; it computes everything twice and asserts only in debug builds.
    """
    semantic = type(interpreter.interpreter_semantic)
    semantic.binary_op_sanitize_overflow_impl = _check


def _check(self: Any, left: Any, right: Any, operation: Any) -> None:
    """Called by Triton before each sum, difference and product of integers of one type."""
    import numpy as np

    kind = left.type.scalar
    if not kind.is_int_signed() or not 1 < kind.int_bitwidth < _WIDEST:
        return
    name = operation.__name__
    a, b = (np.asarray(side.handle.data).astype(np.int64) for side in (left, right))
    result = _OPERATIONS[name](a, b)
    most = 1 << (kind.int_bitwidth - 1)
    if result.size and (int(result.max()) >= most or int(result.min()) < -most):
        raise OverflowError(f"{name} of {kind}: {int(result.max())} or {int(result.min())}")
