"""Owns which generator makes the launches of a planned kernel, by its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernelgen.codegen.cuda.launches import GpuKernel
from kernelgen.codegen.triton.attention import decode_kernel, prefill_kernel
from kernelgen.codegen.triton.chunks import chunks_kernel
from kernelgen.codegen.triton.conv import conv_kernel
from kernelgen.codegen.triton.delta import delta_kernel
from kernelgen.codegen.triton.experts_grouped import grouped_kernel
from kernelgen.codegen.triton.experts_packed import packed_experts_kernel
from kernelgen.codegen.triton.experts_pairs import pairs_kernel
from kernelgen.codegen.triton.experts_sorted import sorted_kernel
from kernelgen.codegen.triton.gemm_tma import tma_kernel
from kernelgen.codegen.triton.head import head_kernel
from kernelgen.codegen.triton.heads import heads_kernel
from kernelgen.codegen.triton.kernels import Choice, StepLayout, triton_kernel
from kernelgen.codegen.triton.latent import latent_decode_kernel, latent_prefill_kernel
from kernelgen.codegen.triton.ring import ring_kernel
from kernelgen.codegen.triton.route import route_kernel
from kernelgen.codegen.triton.sample import sample_kernel
from kernelgen.planner.plan import Kernel

Maker = Callable[[Kernel, Choice, StepLayout, tuple[str, ...]], GpuKernel]

_MAKERS: Mapping[str, Maker] = {
    "attention_decode": decode_kernel,
    "attention_fixed": prefill_kernel,
    "attention_prefill": prefill_kernel,
    "delta_chunks": chunks_kernel,
    "delta_step": delta_kernel,
    "experts_grouped": grouped_kernel,
    "experts_packed": packed_experts_kernel,
    "experts_pairs": pairs_kernel,
    "experts_sorted": sorted_kernel,
    "gemm_tma": tma_kernel,
    "head_linear": heads_kernel,
    "head_sample": head_kernel,
    "latent_decode": latent_decode_kernel,
    "latent_prefill": latent_prefill_kernel,
    "ring": ring_kernel,
    "route": route_kernel,
    "sample": sample_kernel,
    "short_conv": conv_kernel,
}


def gpu_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """All launches of a planned kernel with one tile.

    `why`: the planner's argument, for the header.
    """
    return _MAKERS.get(kernel.match.family.name, triton_kernel)(kernel, choice, layout, why)
