"""Owns the random cache that whole steps start from: pages of layers, states of requests."""

from __future__ import annotations

from kernelgen.core.dtypes import DType
from kernelgen.ir.graph import Role
from kernelgen.verify.arguments import Tables
from kernelgen.verify.built import Built, BuiltKernel, Group
from kernelgen.verify.cache_pool import dense_cache, seen, write_layer
from kernelgen.verify.guarded import POISON
from kernelgen.verify.layouts import LINE_BYTES, PAGE_TOKENS
from kernelgen.verify.operands import cache_place
from kernelgen.verify.place import Place
from kernelgen.verify.scenario import Scenario
from kernelgen.verify.tensors import Generator, Tensor

_SEED = 17


def step_pool(
    built: Built, scenario: Scenario, tables: Tables, where: Place, poisoned: bool
) -> Tensor:
    """`[pages, page_bytes]`: random keys, values and latent rows of every layer where a step may
    read; elsewhere zeros, or NaN where `poisoned`."""
    import torch

    made = torch.Generator().manual_seed(_SEED)
    size = (tables.pages, built.manifest["cache"]["page_bytes"])
    pool = torch.full(size, POISON if poisoned else 0, dtype=torch.uint8)
    pool[0] = 0
    for group in (g for g in built.groups if not g.per_request):
        for layer in group.layers:
            kernel = next(k for k in built.kernels if k.has_cache and layer in k.layers)
            width, dtype = _row(kernel)
            if width:
                _write_rows(pool, scenario, tables, group, layer, (width, dtype), made)
                continue
            place = cache_place(built, kernel, layer, where)
            cache = dense_cache(scenario, place, new=False, generator=made)
            write_layer(pool, scenario, place, tables, cache)
    return pool


def step_states(built: Built, scenario: Scenario, poisoned: bool) -> Tensor | None:
    """`[max_rows + 1, state_bytes]`: what requests have carried so far, each on the page behind
    its row's number; pages that nobody may read are zeros, or NaN where `poisoned`. None for a
    model without states.
    """
    import torch

    size = built.manifest["cache"].get("state_bytes")
    if not size:
        return None
    made = torch.Generator().manual_seed(_SEED)
    pages = built.manifest["args"]["max_rows"] + 1
    states = torch.full((pages, size), POISON if poisoned else 0, dtype=torch.uint8)
    states[0] = 0
    for row, request in enumerate(scenario.requests):
        if request.history and not request.padding:
            # Pairs of bfloat16 are numbers as float32 too.
            plain = torch.randn(size // 2, generator=made).to(torch.bfloat16)
            states[1 + row] = plain.view(torch.uint8)
    return states


def untouchable(scenario: Scenario) -> list[int]:
    """Pages of states that a step must leave as they are: the null page, those of padding rows."""
    return [0, *(1 + row for row, request in enumerate(scenario.requests) if request.padding)]


def _row(kernel: BuiltKernel) -> tuple[int, DType]:
    """Elements and dtype of a latent row; no elements where a layer keeps keys and values."""
    state = next(v.type for v in kernel.block.values if v.role is Role.STATE)
    sides = [d for d in state.shape if isinstance(d, int)]
    return (sides[0] if len(sides) == 1 else 0), state.dtype


def _write_rows(
    pool: Tensor,
    scenario: Scenario,
    tables: Tables,
    group: Group,
    layer: int,
    row_type: tuple[int, DType],
    made: Generator,
) -> None:
    """Random latent rows of what requests have behind them."""
    import torch

    width, dtype = row_type
    kind = getattr(torch, dtype.torch)
    stride = -(-PAGE_TOKENS * width * dtype.bytes // LINE_BYTES) * LINE_BYTES
    start = group.layers.index(layer) * stride
    whole = pool[:, start : start + PAGE_TOKENS * width * dtype.bytes].contiguous()
    cells = whole.view(kind).view(len(pool), PAGE_TOKENS, width)
    table = torch.from_numpy(tables.entries[group.name].astype("int64"))
    for row in range(len(scenario.requests)):
        span = seen(scenario, row, group.window, new=False)
        at = torch.arange(span.start, span.stop)
        if len(at):
            rows = torch.randn((len(at), width), generator=made).to(kind)
            cells[table[row, at // PAGE_TOKENS], at % PAGE_TOKENS] = rows
    pool[:, start : start + whole.shape[1]] = whole
