"""Owns `Device`: what the planner may know about one processor, in stated units."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.core.errors import UnsupportedError, quote

# What a good streaming kernel gets of the vendor's figure where nobody measured. The one device
# measured so far (H200) gives 0.956 for reads and 0.88 for copies: the lower one is assumed.
ASSUMED_MEMORY_SHARE = 0.88
# 788 of 989 TFLOP/s on the same device, bf16, 8192³, random data.
ASSUMED_MATH_SHARE = 0.8


@dataclass(frozen=True)
class Rate:
    """Multiply-add throughput of one element type: dense, accumulated in float32, in TFLOP/s."""

    dtype: str
    spec_tflops: float
    """the vendor's figure; for a CPU, lanes × units × clock"""
    measured_tflops: float | None = None

    @property
    def tflops(self) -> float:
        """What to plan with: the measured figure, else a share of the vendor's."""
        if self.measured_tflops is not None:
            return self.measured_tflops
        return self.spec_tflops * ASSUMED_MATH_SHARE


@dataclass(frozen=True)
class Device:
    """One processor. A unit is a streaming multiprocessor of a GPU or a core of a CPU.

    Figures without "measured" in their name come from the vendor. `modelled` lists what this
    object derives because nobody has measured it on that device.
    """

    name: str
    """the part after the colon of a target: "h200" """
    label: str
    """for people: "NVIDIA H200 SXM, 141 GB" """
    sm: int
    """compute capability × 10 (90 for 9.0); 0 is the CPU"""
    units: int
    memory_bytes: int
    l2_bytes: int
    """cache shared by all units (a CPU's last level)"""
    shared_per_block_bytes: int
    """most fast memory for one thread block; on a CPU the L2 of one core"""
    shared_per_unit_bytes: int
    registers_per_unit: int
    """32-bit registers; on a CPU vector registers of one core"""
    max_registers_per_thread: int
    max_threads_per_unit: int
    spec_gb_s: float
    """memory bandwidth of the data sheet, 10⁹ bytes a second"""
    rates: tuple[Rate, ...]
    launch_us: float
    """from the start of a step to its first kernel's first instruction"""
    boundary_us: float
    """between two dependent kernels of a step, as steps are launched on this device"""
    boundary_plain_us: float
    """the same without programmatic dependent launch"""
    measured_read_gb_s: float | None = None
    measured_copy_gb_s: float | None = None
    """bytes read plus bytes written"""
    latency_measured: bool = False
    """whether `launch_us` and the boundaries were measured on this device"""
    features: frozenset[str] = frozenset()
    driver_names: tuple[str, ...] = ()
    """how the driver spells this device"""
    arch: str = ""
    """what compilers call the code's target: "sm_90a" """
    refused_tiles: frozenset[str] = frozenset()
    """tiles whose code, once compiled for this device, spilled or exceeded a limit (texts such as
    "rows 64, tokens 64, stages 3, warps 4"): the estimate had passed them, the compiler did not"""

    @property
    def is_cpu(self) -> bool:
        """Whether this is the CPU target."""
        return self.sm == 0

    @property
    def sm_name(self) -> str:
        """The target without its device: "sm_90" or "cpu"."""
        return "cpu" if self.is_cpu else f"sm_{self.sm}"

    @property
    def target(self) -> str:
        """The full target, as plans, wheels and tables spell it: "sm_90:h200" or "cpu"."""
        return "cpu" if self.is_cpu else f"{self.sm_name}:{self.name}"

    @property
    def read_gb_s(self) -> float:
        """Read bandwidth to plan with, 10⁹ bytes a second."""
        if self.measured_read_gb_s is not None:
            return self.measured_read_gb_s
        return self.spec_gb_s * ASSUMED_MEMORY_SHARE

    @property
    def copy_gb_s(self) -> float:
        """Bandwidth of traffic that is half reads and half writes, 10⁹ bytes a second."""
        if self.measured_copy_gb_s is not None:
            return self.measured_copy_gb_s
        return self.spec_gb_s * ASSUMED_MEMORY_SHARE

    @property
    def modelled(self) -> tuple[str, ...]:
        """Names of the planning figures that are assumed and not measured here."""
        names = []
        if self.measured_read_gb_s is None:
            names.append("read_gb_s")
        if self.measured_copy_gb_s is None:
            names.append("copy_gb_s")
        names += [f"tflops({r.dtype})" for r in self.rates if r.measured_tflops is None]
        if not self.latency_measured:
            names += ["launch_us", "boundary_us", "boundary_plain_us"]
        return tuple(names)

    def rate(self, dtype: str) -> Rate:
        """Throughput of one element type; `UnsupportedError` where the device has no such maths."""
        for rate in self.rates:
            if rate.dtype == dtype:
                return rate
        raise UnsupportedError(
            f"{self.target} does not multiply {quote(dtype)}",
            allowed=", ".join(r.dtype for r in self.rates),
        )

    def tflops_for(self, dtype: str) -> float:
        """TFLOP/s to plan with for products of `dtype`; errors as in `rate`."""
        return self.rate(dtype).tflops

    def has(self, feature: str) -> bool:
        """Whether the device has a feature such as "pdl", "tma", "wgmma", "tcgen05", "fp8"."""
        return feature in self.features
