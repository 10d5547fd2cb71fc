"""Offsets at the largest sizes there are: the outermost blocks of every kernel, on sparse memory.

Under the interpreter an index that leaves int32 is an error, and an address that nothing is mapped
at ends the process. Operands are virtual: only pages that a block touches exist.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from math import prod
from unittest import mock

import gpu_trials  # noqa: F401  (switches the interpreter on before Triton is imported)
import interpreted
import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda
from interpreted import InterpretedLibrary, Model, planned
from test_triton_model import shortened

from kernelgen.archs.registry import builtin_config, builtin_models
from kernelgen.cli.model import ModelSource
from kernelgen.cli.pipeline import lowered
from kernelgen.codegen.cuda.unit import Argument, TritonUnit
from kernelgen.spec.config import ConfigFile
from kernelgen.verify import clusters
from kernelgen.verify.interpreter import install, interpret

TOKENS, ROWS = 8192, 256
LARGE = max(builtin_models(), key=lambda name: builtin_config(name).data.get("hidden_size", 0))
VOCABULARY, HIDDEN, POSITIONS = 262_208, 8320, 1 << 20  # of the embedding: more than 2³¹ elements
PAGES = 1 << 20  # 2³⁷ bytes
STATES = 1 << 14  # pages: more than 2³³ bytes of a published model's states
WALKED = 256  # tokens of a prompt that a block of a scan walks over
_NORESERVE = 0x4000  # MAP_NORESERVE: address space without memory behind it


def virtual(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Zeros that take memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    try:
        memory = mmap.mmap(-1, max(1, prod(shape)) * dtype.itemsize, flags=flags)
    except OSError as error:
        pytest.skip(f"this machine does not hand out address space: {error}")
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape)).view(*shape)


@contextmanager
def only(program: tuple[int, ...], grid: tuple[int, ...]) -> Iterator[None]:
    """Let a launch of one block be that block of a grid."""
    install()
    import triton.language as tl
    from triton.runtime import interpreter

    def number(value: int) -> object:
        return interpreter.TensorHandle(np.array([value], np.int32), tl.int32)

    builder = interpreter.InterpreterBuilder
    ids = {
        "create_get_program_id": lambda self, axis: number(program[axis]),
        "create_get_num_programs": lambda self, axis: number(grid[axis]),
    }
    with mock.patch.multiple(builder, **ids):
        yield


def ends(*bounds: int) -> Sequence[int]:
    """`range`, but of steps the first one and the last one alone."""
    every = range(*bounds)
    return (every[0], every[-1]) if len(bounds) > 2 else every


def corners(unit: TritonUnit, grid: tuple[int, int, int], values: list[object]) -> None:
    """The outermost blocks of a launch; of clusters the first one and the last one."""
    if unit.cluster > 1:
        with mock.patch.object(clusters, "range", ends, create=True):
            interpret(unit, grid, values)
        return
    for program in product(*({0, size - 1} for size in grid)):
        with only(program, grid):
            interpret(unit, (1, 1, 1), values)


@cache
def large(fusion: bool, decode: tuple[int, ...] = (1, ROWS)) -> Model:
    """A large model of two layers, with a larger vocabulary and context than any published one."""
    config = dict(builtin_config(LARGE).data) | {"num_hidden_layers": 2}
    config |= {"vocab_size": VOCABULARY, "hidden_size": HIDDEN}
    config |= {"max_position_embeddings": POSITIONS}
    source = ModelSource("large", "large", ConfigFile("config.json", config))
    return planned(source, "sm_90", "bfloat16", decode, (TOKENS,), POSITIONS, fusion)


@cache
def published(kind: str, size: int) -> Model:
    """Two layers of a built-in model that has ops of this kind, of its own sizes."""
    for name in builtin_models():
        config = shortened(dict(builtin_config(name).data)) | {"vocab_size": VOCABULARY}
        source = ModelSource(name, name, ConfigFile("config.json", config))
        blocks = lowered(source, "bfloat16").graph.blocks
        if any(node.op.kind == kind for block in blocks for node in block.nodes):
            return planned(source, "sm_90", "bfloat16", (size,), (WALKED,), TOKENS)
    raise LookupError(f"no built-in model has {kind}")


def arguments(model: Model, phase: str, size: int) -> torch.Tensor:
    """Args of a full step whose numbers are as large as they may be."""
    layout = model.program.args
    rows = size if phase == "decode" else 1
    words = torch.zeros(layout.words, dtype=torch.int32)

    def put(name: str, values: object) -> None:
        made = torch.as_tensor(values, dtype=torch.int32).flatten()
        words[layout.offset(name) : layout.offset(name) + len(made)] = made

    asked = size if phase == "decode" else ROWS
    put("counts", [size, rows, asked, 0])
    put("token_ids", [VOCABULARY - 1] * size)
    put("row_slot", range(rows))
    put("row_query_start", range(size + 1) if phase == "decode" else [0] + [size] * ROWS)
    # Where one block walks over all keys of a request, a long context would take minutes.
    put("row_seq_len", [POSITIONS if size == 1 else TOKENS] * rows)
    for group in model.program.cache.token_groups:
        put(f"block_table.{group.name}", [PAGES - 1] * (rows * layout.max_pages))
    put("logit_token", [size - 1] * asked)
    put("logit_row", [*range(asked)] if phase == "decode" else [0] * asked)
    for name in ("state_from", "state_to"):
        if name in {field.name for field in layout.fields}:
            put(name, [STATES - 1] * rows)
    put("temperature", torch.ones(rows).view(torch.int32) * (torch.arange(rows) % 2))
    put("top_p", torch.ones(rows).view(torch.int32))
    return words


def buffers(model: Model) -> Mapping[str, torch.Tensor]:
    """Everything that a step has bound, as address space."""
    program = model.program
    kinds = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    largest = max(plan["workspace_bytes"] for plan in model.manifest["targets"][0]["plans"])
    return {
        **{w.name: virtual(kinds[w.dtype], *w.shape) for w in program.weights},
        "workspace": virtual(torch.uint8, largest),
        "logits": virtual(torch.float32, ROWS, VOCABULARY),
        "cache": virtual(torch.uint8, PAGES, program.cache.page_bytes),
        "sampled": virtual(torch.int32, ROWS),
        "last_sampled": virtual(torch.int32, ROWS),
        "states": virtual(torch.uint8, STATES, max(1, program.cache.state_bytes)),
        "counters": virtual(torch.int32, max(1, max(p.counters for p in program.plans))),
    }


# Every plan, and each op in a kernel of its own where it has the most rows.
PLANS = [(True, "decode", 1), (True, "decode", ROWS), (True, "mixed", TOKENS)]
PLANS += [(False, "mixed", TOKENS)]


@pytest.mark.parametrize(("fusion", "phase", "size"), PLANS)
def test_no_offset_leaves_its_type(fusion: bool, phase: str, size: int) -> None:
    check(large(fusion), phase, size)


@pytest.mark.parametrize("size", [8, pytest.param(64, marks=pytest.mark.soak)])
def test_nor_in_products_of_few_rows(size: int) -> None:
    check(large(True, (size,)), "decode", size)


# What else there are kernels for: latent rows and, in the same models, scans; routed experts.
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["latent_attention", "expert_linear"])
@pytest.mark.parametrize(("phase", "size"), [("decode", ROWS), ("mixed", WALKED)])
def test_nor_in_other_kinds_of_layers(kind: str, phase: str, size: int) -> None:
    check(published(kind, ROWS), phase, size)


def check(model: Model, phase: str, size: int) -> None:
    """Run the outermost blocks of every kernel of a plan."""
    gpu = FakeCuda(eager=True)
    plan = [(p.phase, p.size) for p in model.program.plans].index((phase, size))
    library = InterpretedLibrary(model.program, gpu, dict(buffers(model)))
    seen: set[str] = set()

    def once(unit: TritonUnit, grid: tuple[int, int, int], values: list[object]) -> None:
        if unit.name not in seen:
            seen.add(unit.name)
            corners(unit, grid, values)

    with mock.patch.object(interpreted, "interpret", once):
        library.step(plan, arguments(model, phase, size))
    assert seen == library.done and len(seen) > 5


KERNEL = '''"""a row of a matrix"""
import triton
import triton.language as tl


@triton.jit
def clear(y, N: tl.constexpr):
    row = tl.program_id(0){cast}
    tl.store(y + row * N + tl.arange(0, 16), tl.zeros((16,), tl.float32))
'''


@pytest.mark.parametrize("cast", ["", ".to(tl.int64)"])
def test_an_offset_beyond_int32_is_found(cast: str) -> None:
    signature = (Argument("y", "*fp32", 16),)
    text = KERNEL.format(cast=cast)
    unit = TritonUnit("clear", text, "clear", signature, (("N", VOCABULARY),))
    y = virtual(torch.float32, TOKENS, VOCABULARY)
    y[-1, :16] = 1.0
    with only((TOKENS - 1, 0, 0), (TOKENS, 1, 1)):
        if cast:
            interpret(unit, (1, 1, 1), [y])
            assert not y[-1, :16].any()
        else:
            with pytest.raises(Exception, match="mul of int32"):
                interpret(unit, (1, 1, 1), [y])
