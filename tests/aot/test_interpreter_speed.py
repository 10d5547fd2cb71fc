"""What the interpreter remembers is what it would have made: types, refusals, what is put back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernelgen.codegen.cuda.unit import Argument, TritonUnit
from kernelgen.verify.interpreter import install, interpret

TEXT = """
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    values = tl.load(x + at)
    tl.store(y + at, values - tl.sum(values, 0) + {more})
"""


def unit(width: int, kind: str, more: int) -> TritonUnit:
    return TritonUnit(
        name="toy",
        text=TEXT.format(more=more),
        function="kernel",
        signature=(Argument("x", kind, 16), Argument("y", kind, 16)),
        constants=(("WIDTH", width),),
    )


def test_kernels_of_any_type_and_width_in_any_order() -> None:
    for _ in range(2):
        for width, kind, name in (
            (8, "*fp32", "float32"),
            (8, "*i32", "int32"),
            (4, "*i32", "int32"),
        ):
            for more in (1, 2):  # another text is another function
                x = torch.arange(width, dtype=getattr(torch, name))
                y = torch.full_like(x, -7)
                interpret(unit(width, kind, more), (1, 1, 1), [x, y])
                assert torch.equal(y, x - x.sum() + more)


def test_the_language_is_put_back_after_each_kernel() -> None:
    install()
    import triton.language as tl

    for _ in range(2):
        interpret(unit(8, "*fp32", 1), (1, 1, 1), [torch.ones(8), torch.ones(8)])
        for builtin in (tl.load, tl.tensor.__add__, tl.math.exp):
            assert tl.core.is_builtin(builtin)


def test_types_of_blocks_are_those_of_triton() -> None:
    install()
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    elements = {tl.float32: "float32", tl.bfloat16: "uint16", tl.int8: "int8", tl.int1: "bool"}
    for _ in range(2):
        for element, numpy in elements.items():
            for shape in ([4, 8], [8, 4], [tl.constexpr(32)]):
                block = tl.block_type(element, shape)
                sizes = [getattr(s, "value", s) for s in shape]
                assert list(block.shape) == sizes and block.numel == 32
                assert block.element_ty is element and str(element) in str(block)
                assert block != tl.block_type(element, [2, *sizes])
                assert block != tl.block_type(tl.float64, shape)
                assert _get_np_dtype(block) == np.dtype(numpy) == _get_np_dtype(element)
                tensor = tl.tensor(TensorHandle(np.zeros(sizes, numpy), element), block)
                assert [s.value for s in tensor.shape] == sizes and tensor.numel.value == 32
                assert tensor.type is block and tensor.dtype is element
        pointers = tl.block_type(tl.pointer_type(tl.float32), [4])
        assert _get_np_dtype(pointers) == np.uint64 and pointers.scalar.is_ptr()
        with pytest.raises(ValueError, match="power of 2"):
            tl.block_type(tl.float32, [3])
