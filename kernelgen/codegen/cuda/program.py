"""Owns the GPU program: from plans to every kernel of a step, each tile of each kernel once."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from kernelgen.codegen.argument import argument
from kernelgen.codegen.cuda.host import StepProgram
from kernelgen.codegen.cuda.launches import GpuKernel, launch_key
from kernelgen.codegen.step_args import args_layout
from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.codegen.triton.following import following_kernels, gpu_rules
from kernelgen.codegen.triton.kernels import StepLayout
from kernelgen.codegen.triton.prepare import prepare_kernel
from kernelgen.codegen.weights import bound_weights, demanded_layouts
from kernelgen.planner.caches import cache_schema
from kernelgen.planner.plan import Plan
from kernelgen.planner.planner import MAX_ROWS

NO_CONTRACTION = ("enable_fp_fusion", False)


def cuda_program(
    plans: Sequence[Plan],
    sm: int,
    vocabulary: int,
    max_positions: int,
    refused: Set[str] = frozenset(),
) -> StepProgram:
    """Render the kernels of all plans for one SM (90 for 9.0). `refused`: tiles that kernels beside
    the plans must not have either (`Device.refused_tiles`).
    """
    graph = plans[0].graph
    cache = cache_schema(graph.caches)
    max_tokens = max(p.sizes.tokens for p in plans)
    args = args_layout(cache, max_tokens, MAX_ROWS, max_positions)
    layout = StepLayout(cache, args)
    kernels: dict[str, GpuKernel] = {}
    for plan in plans:
        for launch in plan.launches:
            key = launch_key(launch.kernel, launch.price.choice)
            if key not in kernels:
                why = argument(launch.kernel, plan)
                kernels[key] = gpu_kernel(launch.kernel, launch.price.choice, layout, why)
    following = following_kernels(args, vocabulary, refused)
    if plans[0].varying is not None:
        kernels = {key: _uncontracted(kernel) for key, kernel in kernels.items()}
        following = {name: _uncontracted(kernel) for name, kernel in following.items()}
    return StepProgram(
        sm=sm,
        plans=tuple(plans),
        kernels=kernels,
        prepare=prepare_kernel(args, vocabulary),
        weights=bound_weights(graph, demanded_layouts(plans)),
        cache=cache,
        args=args,
        vocabulary=vocabulary,
        rules=gpu_rules(vocabulary),
        following=following,
    )


def _uncontracted(kernel: GpuKernel) -> GpuKernel:
    """The kernel without contraction of products and sums, which a compiler may choose differently
    for copies of one loop: the text alone then says how a value is rounded.
    """
    passes = [
        replace(one, unit=replace(one.unit, options=(*one.unit.options, NO_CONTRACTION)))
        for one in kernel.passes
    ]
    return GpuKernel(tuple(passes))
