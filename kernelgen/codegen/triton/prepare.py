"""Owns the launch that opens every GPU step: ids, positions and request rows of all tokens."""

from __future__ import annotations

from kernelgen.codegen.cuda.launches import Constant, GpuKernel, GpuPass, Pointer
from kernelgen.codegen.cuda.unit import Argument, TritonUnit
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.rendering import render
from kernelgen.codegen.step_args import ArgsLayout

_BLOCK = 64
_FIELDS = ("counts", "token_ids", "row_query_start", "row_slot", "row_seq_len")


def prepare_kernel(args: ArgsLayout, vocabulary: int) -> GpuKernel:
    """One block for each 64 token rows of a plan; rows beyond the step's are written as padding."""
    words = [(name.upper(), args.offset(name)) for name in _FIELDS]
    words += [("MAX_ROWS", next_power_of_two(args.max_rows)), ("VOCABULARY", vocabulary)]
    names = ("token_ids", "positions", "rows", "last_sampled", "args")
    pointers = tuple(Pointer(name) for name in names)
    unit = TritonUnit(
        name="prepare",
        text=render("triton/prepare.py.j2", words=words),
        function="prepare",
        signature=(*(Argument(name, "*i32", 16) for name in names), Argument("total", "i32")),
        constants=(("BLOCK", _BLOCK),),
        num_warps=4,
        num_stages=1,
        pdl=True,
    )
    total = Constant(lambda sizes: sizes.tokens)
    one = GpuPass(unit, (*pointers, total), lambda sizes: (ceil_div(sizes.tokens, _BLOCK), 1, 1))
    return GpuKernel((one,))
