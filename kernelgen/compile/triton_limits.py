"""Owns what makes a compiled kernel illegal on its SM: spills, or more than a block gets."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.codegen.cuda.image import KernelImage
from kernelgen.core.errors import KernelgenError
from kernelgen.hw import parse_target

_MOST_THREADS = 1024
_TENSOR_COLUMNS = 512
MOST_CLUSTER = 8
"""blocks of a cluster that every SM with clusters runs"""
_TOLD = 5


@dataclass(frozen=True)
class KernelFault:
    """One limit that one kernel exceeds; `tile` is the planner's choice that led to it."""

    kernel: str
    sm: int
    tile: str
    problem: str

    def __str__(self) -> str:
        tile = f" ({self.tile})" if self.tile else ""
        return f"{self.kernel}{tile} on sm_{self.sm} {self.problem}"


class IllegalKernel(KernelgenError):
    """Kernels that compile but must not run; a planner excludes the tiles of `faults`."""

    template = "illegal kernel: {text}"
    faults: tuple[KernelFault, ...] = ()

    @classmethod
    def found(cls, faults: tuple[KernelFault, ...]) -> IllegalKernel:
        """The error over all faults of a build; the first ones are spelled out."""
        told = [str(fault) for fault in faults[:_TOLD]]
        if len(faults) > _TOLD:
            told.append(f"and {len(faults) - _TOLD} more")
        error = cls.of(text="; ".join(told), hint="exclude the tile and plan again")
        error.faults = faults
        return error


def problems(image: KernelImage, spills: bool = False) -> list[str]:
    """Every limit that the kernel exceeds on its SM, in words; empty when it is legal. `spills`:
    whether spilled registers are accepted.
    """
    device = parse_target(f"sm_{image.sm}")
    # The register file hands out units of 256 to a warp.
    each = -(-image.registers // 8) * 8
    registers = each * image.threads
    most = MOST_CLUSTER if device.has("cluster") else 1
    checks = [
        (
            image.spill_bytes > 0 and not spills,
            f"spills registers: {image.spill_bytes} bytes of stores and loads (limit: 0)",
        ),
        (
            registers > device.registers_per_unit,
            f"takes {registers} registers, {each} × {image.threads} threads"
            f" (limit: {device.registers_per_unit})",
        ),
        (
            image.shared_bytes > device.shared_per_block_bytes,
            f"takes {image.shared_bytes} bytes of shared memory"
            f" (limit: {device.shared_per_block_bytes})",
        ),
        (
            image.threads > _MOST_THREADS,
            f"takes {image.threads} threads a block (limit: {_MOST_THREADS})",
        ),
        (
            image.tensor_columns > _TENSOR_COLUMNS,
            f"takes {image.tensor_columns} columns of tensor memory (limit: {_TENSOR_COLUMNS})",
        ),
        (
            image.scratch_bytes > 0,
            f"asks for {image.scratch_bytes} bytes of global scratch a block, as descriptors made"
            " on the device do (limit: 0)",
        ),
        (
            image.cluster > most,
            f"runs in clusters of {image.cluster} blocks (limit: {most})",
        ),
    ]
    return [text for exceeded, text in checks if exceeded]
