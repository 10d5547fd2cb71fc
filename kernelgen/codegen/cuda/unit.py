"""Owns `TritonUnit`: one Triton kernel as text with everything that decides its compiled code."""

from __future__ import annotations

import re
from dataclasses import dataclass

Constant = int | float | bool | str | None

GIVEN = ("PDL", "INTERPRET", "FLOAT8")
"""Constexpr arguments that the compiler gives: `PDL` says whether the kernel is launched with
programmatic dependent launch on this SM, `INTERPRET` is False outside Triton's interpreter,
`FLOAT8` whether the SM itself makes float16 of e4m3."""

_TYPE = re.compile(r"\*?(i1|i8|i16|i32|i64|u8|u16|u32|u64|fp16|bf16|fp32|fp64|fp8\w{2,6})")
_DESCRIPTOR = re.compile(r"tensordesc<(fp16|bf16|fp32)\[(\d+), (\d+)\]>")


@dataclass(frozen=True)
class Argument:
    """One run-time argument. `type` as Triton spells it: "*bf16", "i32", "i64", "fp32", or
    "tensordesc<bf16[128, 64]>" for a descriptor of a matrix that is read in blocks of 128 × 64
    (sm_90 and later; see `descriptor_type`).

    `divisible` is what every launch promises its value (an address for a pointer) to be a multiple
    of: 16 gives vector loads, 1 promises nothing.
    """

    name: str
    type: str
    divisible: int = 1

    @property
    def block(self) -> tuple[int, int] | None:
        """Rows and columns of a descriptor's block; None for every other argument."""
        match = _DESCRIPTOR.fullmatch(self.type)
        return (int(match[2]), int(match[3])) if match else None


def descriptor_type(element: str, rows: int, columns: int) -> str:
    """The type of a descriptor; `element` as Triton spells it: "bf16"."""
    return f"tensordesc<{element}[{rows}, {columns}]>"


@dataclass(frozen=True)
class TritonUnit:
    """One kernel to compile: `text` is a Python file, `function` the @triton.jit function in it.

    `signature` lists the run-time arguments in the function's order; every other argument is a
    constexpr named in `constants`, or one of `GIVEN`. `name` tells artefacts of one SM apart and
    is what errors call it; neither it nor `tile` (the planner's words for its choice) changes the
    code. `pdl` asks for programmatic dependent launch where the SM has it (9.0 and later).
    `sms` are the only SMs to compile it for; empty means every one of the build.
    """

    name: str
    text: str
    function: str
    signature: tuple[Argument, ...]
    constants: tuple[tuple[str, Constant], ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    pdl: bool = False
    options: tuple[tuple[str, Constant], ...] = ()
    """further compiler options by name: maxnreg, enable_fp_fusion, …"""
    tile: str = ""
    spills_on: tuple[int, ...] = ()
    """SMs where it is legal although it spills registers: measured there as the fastest tile"""
    sms: tuple[int, ...] = ()
    cluster: int = 1
    """neighbouring blocks that run together and reach each other's shared memory (from sm_90 on)"""
    exchange_bytes: int = 0
    """shared memory of a block behind what the compiler takes: what the others send it"""

    def __post_init__(self) -> None:
        for name in (self.name, self.function):
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is not an identifier")
        for argument in self.signature:
            if not _TYPE.fullmatch(argument.type) and argument.block is None:
                raise ValueError(f"{self.name}: {argument.name}: no type {argument.type!r}")
        names = [a.name for a in self.signature] + [name for name, _ in self.constants]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: an argument is named twice: {names}")

    def pdl_on(self, sm: int) -> bool:
        """Whether launches on `sm` (90 for 9.0) are programmatic dependent ones."""
        return self.pdl and sm >= 90
