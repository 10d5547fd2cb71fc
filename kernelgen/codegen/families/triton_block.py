"""Owns the legality of a thread block: what it takes of a multiprocessor, limits it breaks."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.hw.device import Device

WARP = 32
RESERVED_SHARED_BYTES = 1 << 10  # the driver's own part of each block's shared memory
_MAX_THREADS = 1024
_REGISTERS_OF_THE_FRAME = 28  # addresses, loop counters, masks: what small kernels of all kinds use


@dataclass(frozen=True)
class Footprint:
    """What one block takes. `registers` is an estimate from the tile; the assembler has the last
    word.
    """

    warps: int
    registers: int
    """for each thread, the frame included"""
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    def problems(self, device: Device) -> tuple[str, ...]:
        """Every limit that the block breaks, in words; empty when it is legal."""
        found = []
        if self.threads > _MAX_THREADS:
            found.append(f"{self.threads} threads, a block has at most {_MAX_THREADS}")
        if self.registers > device.max_registers_per_thread:
            most = device.max_registers_per_thread
            found.append(f"about {self.registers} registers a thread, there are {most}")
        if self.registers * self.threads > device.registers_per_unit:
            found.append(
                f"about {self.registers * self.threads} registers, a multiprocessor has"
                f" {device.registers_per_unit}"
            )
        if self.shared_bytes > device.shared_per_block_bytes:
            found.append(
                f"{self.shared_bytes / 1024:.0f} KiB of shared memory, a block has at most"
                f" {device.shared_per_block_bytes >> 10}"
            )
        return tuple(found)

    def resident(self, device: Device) -> int:
        """Blocks that one multiprocessor holds at a time; at least 1 for a legal block."""
        registers = -(-self.registers // 8) * 8 * self.threads
        shared = self.shared_bytes + RESERVED_SHARED_BYTES
        return min(
            device.max_threads_per_unit // 64,  # 32 blocks where 2,048 threads fit, 24 where 1,536
            device.max_threads_per_unit // self.threads,
            device.registers_per_unit // registers,
            device.shared_per_unit_bytes // shared,
        )


def frame_registers(elements: float) -> int:
    """Registers of a thread that holds so many 32-bit elements."""
    return _REGISTERS_OF_THE_FRAME + int(-(-elements // 1))


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is not below n: the length of a range in a kernel."""
    return 1 << max(0, n - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)
