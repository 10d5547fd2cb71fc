"""Owns how a multiprocessor's memory is divided between L1 cache and shared memory.

A multiprocessor changes the division only when it is empty: blocks of the next kernel cannot start
beside those of the one before where the two ask for different ones. Loads on their way to registers
need L1 cache: on an H200 steps that read 16 GB of weights for one and eight requests took 4,340 and
4,840 µs with 28 KiB of it, 4,160 and 4,440 µs with 156 KiB. Rings in shared memory need none: with
all memory shared by every kernel, small ones between rings included, steps of 860 and 1,090 µs took
27 and 21 µs less than with no preference for the small ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelgen.codegen.cuda.image import KernelImage
from kernelgen.codegen.cuda.launches import GpuKernels, launch_key
from kernelgen.planner.plan import Plan

STREAMING = frozenset({"gemv", "sliced", "sliced_packed", "experts_pairs"})
"""families whose weights go to registers, not to shared memory"""
_TO_REGISTERS = STREAMING | {"skinny", "clustered"}
"""products that want some L1 cache"""
NONE, SOME, ALL = -1, 44, 100
"""percent of the most shared memory there can be: no preference, 100 KiB of 228, all"""
_FITS_SOME = 99 << 10
_PLAIN = 48 << 10  # more has to be asked for


def streams(plan: Plan) -> bool:
    """Whether most of a plan's time goes to kernels that load weights into registers."""
    shares = [
        (launch.price.us, launch.kernel.match.family.name in STREAMING) for launch in plan.launches
    ]
    return 2 * sum(us for us, streaming in shares if streaming) > sum(us for us, _ in shares)


def rings(plan: Plan) -> bool:
    """Whether most of the products' time goes to rings in shared memory."""
    us = [(launch.kernel.match.family.name, launch.price.us) for launch in plan.launches]
    through = sum(one for name, one in us if name == "ring")
    return through > sum(one for name, one in us if name in _TO_REGISTERS)


def carve_outs(
    plans: Iterable[Plan], kernels: GpuKernels, images: Mapping[str, KernelImage]
) -> dict[str, int]:
    """Percent of shared memory that each unit asks for, by its name: throughout a plan that streams
    the same, as far as it is enough, and all throughout a plan of rings; else all where a block
    needs much, for several blocks.
    """

    def units(chosen: Iterable[Plan]) -> set[str]:
        return {
            one.unit.name
            for plan in chosen
            for launch in plan.launches
            for one in kernels[launch_key(launch.kernel, launch.price.choice)].passes
        }

    known = tuple(plans)
    streamed, ringed = units(filter(streams, known)), units(filter(rings, known))
    return {
        name: carve_out(image.shared_bytes, streamed=name in streamed, ringed=name in ringed)
        for name, image in images.items()
    }


def carve_out(shared_bytes: int, *, streamed: bool, ringed: bool = False) -> int:
    """The same for one kernel of a plan."""
    if streamed and shared_bytes <= _FITS_SOME:
        return SOME
    return ALL if ringed or shared_bytes > _PLAIN else NONE
