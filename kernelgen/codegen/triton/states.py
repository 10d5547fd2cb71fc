"""Owns how kernels spell states of requests: the words of their pages, constants of their pool."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.families.triton_block import next_power_of_two
from kernelgen.codegen.step_args import STATE_FIELDS
from kernelgen.codegen.triton.expressions import triton_name
from kernelgen.codegen.triton.kernels import StepLayout
from kernelgen.planner.network import Region

_FIELDS = ("counts", "row_slot", "row_query_start", "row_seq_len")


def step_constants(layout: StepLayout, states: bool = True) -> list[tuple[str, int]]:
    """Constants of a kernel that reads args: where fields start, and capacities."""
    args = layout.args
    names = (*_FIELDS, *(STATE_FIELDS if states else ()))
    found = [(name.upper(), args.offset(name)) for name in names]
    return [*found, ("ROWS", next_power_of_two(args.max_rows))]


def whole_rows(region: Region, name: str) -> str:
    """The pointer to a value's rows, which are all of what it is a view of."""
    access = region.network.access[name]
    whole = region.value(access.base).type.static_elements
    assert access.offset == 0 and region.value(name).type.static_elements == whole, name
    return triton_name(access.base)


def number_of_head(region: Region, name: str, row: str, head: str) -> str:
    """The pointer to the one number that a row has for each head."""
    access = region.network.access[name]
    stride = region.value(access.base).type.static_elements
    offset = f" + {access.offset}" if access.offset else ""
    return f"{triton_name(access.base)} + {row} * {stride}{offset} + {head}"


def state_context(region: Region, name: str, layout: StepLayout) -> dict[str, Any]:
    """A state's pointer and how many of its elements a page of all states holds."""
    size = region.value(name).type.dtype.bits // 8
    return {
        "name": triton_name(region.base(name)),
        "bytes": size,
        "page_elements": layout.cache.state_bytes // size,
    }
