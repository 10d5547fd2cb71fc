"""Clusters under the interpreter: blocks see each other's memory, one fault ends them all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernelgen.codegen.cuda.unit import Argument, TritonUnit
from kernelgen.codegen.rendering import render
from kernelgen.verify.interpreter import interpret

SIZE, WIDTH = 4, 8
HEAD = "import triton\nimport triton.language as tl\n\n\n"
BODY = """

@triton.jit
def kernel(x, y, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    cluster_here()
    block = tl.program_id(0)
    part = block % SIZE
    memory = exchange_memory(4 * SIZE * WIDTH)
    at = tl.arange(0, WIDTH)
    values = tl.load(x + block * WIDTH + at)
    {early}
    cluster_wait()
    for other in tl.static_range(SIZE):
        send(memory + 4 * (part * WIDTH + at), at * 0 + other, values)
    cluster_done()
    cluster_wait()
    total = sent(memory + 4 * at)
    for other in tl.static_range(1, SIZE):
        total = total * 2 + sent(memory + 4 * (other * WIDTH + at))
    tl.store(y + block * WIDTH + at, total)
"""


def unit(early: str = "") -> TritonUnit:
    text = HEAD + render("triton/cluster.j2") + BODY.format(early=early or "tl.static_assert(True)")
    return TritonUnit(
        name="toy",
        text=text,
        function="kernel",
        signature=(Argument("x", "*fp32", 16), Argument("y", "*fp32", 16)),
        constants=(("SIZE", SIZE), ("WIDTH", WIDTH)),
        cluster=SIZE,
        exchange_bytes=4 * SIZE * WIDTH,
    )


def test_blocks_add_up_what_all_have_sent() -> None:
    x = torch.randn(3 * SIZE, WIDTH)
    y = torch.full_like(x, float("nan"))
    interpret(unit(), (3 * SIZE, 1, 1), [x, y])
    parts = x.reshape(3, SIZE, WIDTH).numpy()
    wanted = parts[:, 0]
    for other in range(1, SIZE):
        wanted = wanted * 2 + parts[:, other]
    for block in range(SIZE):
        assert np.array_equal(y.reshape(3, SIZE, WIDTH)[:, block].numpy(), wanted)


def test_a_block_that_fails_ends_the_cluster() -> None:
    """Nobody waits for ever, and the error is its own."""
    x = torch.randn(SIZE, WIDTH)
    faulty = unit(
        "values = values + tl.load(x + at, mask=at, other=missing) if part == 2 else values"
    )
    with pytest.raises(Exception, match="missing"):
        interpret(faulty, (SIZE, 1, 1), [x, torch.empty_like(x)])
