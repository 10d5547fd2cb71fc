"""Owns Triton's interpreter as an oracle: generated kernels on the CPU, rounding as a GPU does.

The interpreter of Triton 3.6 to 3.9 keeps bfloat16 as bits and does arithmetic on those bits,
truncates where a GPU rounds, calls a comparison of integers an integer (3.9 then refuses it as a
mask), and cannot use a scalar as a loop bound with numpy 2.4. `install` repairs that; kernels
themselves need no change.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from kernelgen.core.errors import UsageError
from kernelgen.verify.bfloat16_bits import rounded, widened
from kernelgen.verify.clusters import cluster_assembly, run_clusters
from kernelgen.verify.interpreter_speed import remember
from kernelgen.verify.overflow import install_overflow_check
from kernelgen.verify.rings import spoken_for

_SWITCH = "TRITON_INTERPRET"
_STATE = {"installed": False}
_FUNCTIONS: dict[tuple[str, str], Any] = {}


class Unit(Protocol):
    """What a generated kernel says of itself; `TritonUnit` of the code generator is one."""

    @property
    def text(self) -> str:
        """A Python file."""

    @property
    def function(self) -> str:
        """The kernel in it."""

    @property
    def signature(self) -> Sequence[Any]:
        """Run-time arguments in order, each with a `name` and, for a descriptor, its `block`."""

    @property
    def constants(self) -> Sequence[tuple[str, Any]]:
        """Names and values of constants."""

    @property
    def cluster(self) -> int:
        """Neighbouring blocks that run together."""

    @property
    def exchange_bytes(self) -> int:
        """Shared memory of a block that the others write to."""


def install() -> None:
    """Switch the interpreter on for this process and repair it.

    `UsageError` where Triton has been imported without it.
    """
    if _STATE["installed"]:
        return
    os.environ[_SWITCH] = "1"
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    if not isinstance(tl.zeros, interpreter.InterpretedFunction):
        raise UsageError(f"Triton was imported before {_SWITCH}=1 was set", where=_SWITCH)
    _repair(interpreter)
    _STATE["installed"] = True


def interpret(unit: Unit, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
    """Run one kernel on CPU tensors and numbers, in the order of the unit's signature.

    For a descriptor the matrix that it describes, `[rows, columns]`.
    """
    install()
    given = {"PDL": False, "INTERPRET": True, "FLOAT8": False}
    function = _function(unit)
    constants = dict(unit.constants)
    constants |= {k: v for k, v in given.items() if k in function.arg_names}
    values = {
        a.name: value if a.block is None else _descriptor(value, a.block)
        for a, value in zip(unit.signature, arguments, strict=True)
    }
    blocks = grid if unit.cluster == 1 else _in_clusters(function.rewrite(), unit, grid)
    function[blocks](**values, **constants)


def _in_clusters(function: Any, unit: Unit, grid: tuple[int, int, int]) -> Callable[..., Any]:
    """A grid that has no block left: all have run when its size is asked for."""
    import triton.runtime.interpreter as interpreter

    def run(arguments: Any) -> tuple[int, int, int]:
        run_clusters(function, arguments, grid, unit.cluster, unit.exchange_bytes, interpreter)
        return (0, 1, 1)

    return run


def _descriptor(matrix: Any, block: tuple[int, int]) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix, list(block))


def _function(unit: Unit) -> Any:
    """The function of the unit's text; the interpreter reads its source from a file."""
    key = (unit.function, unit.text)
    if key not in _FUNCTIONS:
        folder = Path(tempfile.mkdtemp(prefix="kernelgen-interpreter-"))
        path = folder / f"{unit.function}.py"
        path.write_text(spoken_for(unit.text))
        spec = importlib.util.spec_from_file_location(f"{folder.name}.{unit.function}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _FUNCTIONS[key] = getattr(module, unit.function)
    return _FUNCTIONS[key]


def _repair(interpreter: Any) -> None:
    import numpy as np
    import triton.language as tl

    builder = interpreter.InterpreterBuilder
    plain = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.scalar == tl.bfloat16:
            wide = widened(data)
            same = target.scalar == tl.float32
            return wide.view(np.uint32) if same else convert(wide, tl.float32, target, rounding)
        if target.scalar == tl.bfloat16:
            wide = data.view(np.float32) if source.scalar == tl.float32 else data.astype(np.float32)
            return rounded(wide)
        return plain(data, source, target, rounding)

    interpreter._convert_float = convert
    for name in ("binary_op", "unary_op", "ternary_op"):
        plain_op = _with_truth(interpreter, getattr(builder, name))
        setattr(builder, name, _through_float32(interpreter, plain_op))
    builder.create_dot = _dot(interpreter)
    builder.create_inline_asm = _hint(interpreter)
    builder.get_bf16 = _constant(interpreter)
    install_overflow_check(interpreter)
    _repair_constants(interpreter)
    _repair_externs(interpreter)
    _repair_index(interpreter)
    remember(interpreter)


def _with_truth(interpreter: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """An elementwise operation whose truth values are typed as such."""
    import numpy as np
    import triton.language as tl

    def run(self: Any, *arguments: Any) -> Any:
        made = plain(self, *arguments)
        return interpreter.TensorHandle(made.data, tl.int1) if made.data.dtype == np.bool_ else made

    return run


def _through_float32(interpreter: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """An elementwise operation that computes bfloat16 operands as float32 and rounds the result."""
    import numpy as np
    import triton.language as tl

    as_bits = {
        np.bitwise_and,
        np.bitwise_or,
        np.bitwise_xor,
        np.left_shift,
        np.right_shift,
        np.where,
    }

    def narrow(handle: Any) -> bool:
        return isinstance(handle, interpreter.TensorHandle) and handle.dtype.scalar == tl.bfloat16

    def run(self: Any, *arguments: Any) -> Any:
        *handles, op = arguments
        if op in as_bits or not any(narrow(h) for h in handles):
            return plain(self, *arguments)
        out = np.asarray(op(*[widened(h.data) if narrow(h) else h.data for h in handles]))
        if out.dtype == np.bool_:
            return interpreter.TensorHandle(out, tl.int1)
        return interpreter.TensorHandle(rounded(out.astype(np.float32)), tl.bfloat16)

    return run


def _dot(interpreter: Any) -> Callable[..., Any]:
    """A product in float32, as tensor cores accumulate."""
    import numpy as np
    import triton.language as tl

    def operand(handle: Any) -> Any:
        if handle.dtype.scalar == tl.bfloat16:
            return widened(handle.data)
        return handle.data.astype(np.float32)

    def run(self: Any, a: Any, b: Any, sums: Any, precision: Any, imprecise: Any) -> Any:
        product = np.matmul(operand(a), operand(b)).astype(sums.data.dtype)
        return interpreter.TensorHandle(product + sums.data, sums.dtype.scalar)

    return run


def _constant(interpreter: Any) -> Callable[..., Any]:
    """A number that meets bfloat16; the interpreter has none."""
    import numpy as np
    import triton.language as tl

    def run(self: Any, value: float) -> Any:
        return interpreter.TensorHandle(rounded(np.array([value], np.float32)), tl.bfloat16)

    return run


def _hint(interpreter: Any) -> Callable[..., Any]:
    """Assembly that only asks for lines of a cache (nothing happens), products of pairs, and what
    the blocks of a cluster exchange.
    """
    import numpy as np
    import triton.language as tl

    class Left:
        """What an instruction leaves, or zeros."""

        def __init__(self, data: Any) -> None:
            self._data = data

        def get_result(self, number: int) -> Any:
            float32 = self._data.dtype == np.float32
            return interpreter.TensorHandle(self._data, tl.float32 if float32 else tl.int32)

    class Pair:
        """Products of two bfloat16 a word, plus two: rounded once."""

        def __init__(self, *words: Any) -> None:
            def halves(shift: int) -> Any:
                a, b, c = (
                    widened((w.astype(np.int32).view(np.uint32) >> shift).astype(np.uint16))
                    for w in words
                )
                # float64 holds the product of two bfloat16, and all but far smaller sums.
                exact = a.astype(np.float64) * b + c
                return rounded(exact.astype(np.float32)).astype(np.uint32) << shift

            self._data = (halves(0) | halves(16)).view(np.int32)

        def get_result(self, number: int) -> Any:
            return interpreter.TensorHandle(self._data, tl.int32)

    def run(self: Any, text: str, constraints: str, values: Any, *unused: Any) -> Any:
        if text.startswith("fma.rn.bf16x2 "):
            return Pair(*(v.data for v in values))
        if text.startswith("prefetch."):
            return Left(np.zeros(values[0].data.shape, np.int32))
        left = cluster_assembly(text, [v.data for v in values])
        if left is None:
            raise ValueError(f"the interpreter knows no assembly such as {text}")
        return Left(left)

    return run


def _repair_constants(interpreter: Any) -> None:
    """A constant minus a tensor is a constant that holds a tensor; 3.7 takes it for neither."""
    import triton.language as tl

    semantic = type(interpreter.interpreter_semantic)
    plain = semantic.to_tensor

    def to_tensor(self: Any, x: Any, check_type: bool = True) -> Any:
        return plain(self, x.value if isinstance(x, tl.constexpr) else x, check_type)

    semantic.to_tensor = to_tensor


def _repair_index(interpreter: Any) -> None:
    """numpy 2.4 no longer takes an array of one element for a number."""
    plain = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))

    interpreter._patch_lang_tensor = patch


def _repair_externs(interpreter: Any) -> None:
    """Functions of CUDA's library that the expression printer uses, by numpy."""
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice

    def spelled(meaning: Callable[[Any], Any]) -> Callable[..., Any]:
        def call(x: Any, **unused: Any) -> Any:
            with np.errstate(over="ignore"):
                data = np.asarray(meaning(x.handle.data), np.float32)
            return tl.core.tensor(interpreter.TensorHandle(data, tl.float32), x.type)

        return call

    libdevice.exp, libdevice.tanh = spelled(np.exp), spelled(np.tanh)
    libdevice.log1p = spelled(np.log1p)
