"""Owns the CPU program: from plans to all sources of a library, and what the manifest has to say
about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelgen.codegen.argument import argument
from kernelgen.codegen.artefact import KernelSource
from kernelgen.codegen.cpp.host import step_program
from kernelgen.codegen.cpp.kernels import kernel_source
from kernelgen.codegen.step_args import ArgsLayout, args_layout
from kernelgen.codegen.step_rules import RulesLayout, rules_layout
from kernelgen.codegen.weights import BoundWeight, bound_weights, demanded_layouts
from kernelgen.core.resources import templates_dir
from kernelgen.planner.caches import CacheSchema, cache_schema
from kernelgen.planner.plan import Plan
from kernelgen.planner.planner import MAX_ROWS


@dataclass(frozen=True)
class CppProgram:
    """Everything generated for the CPU target."""

    plans: tuple[Plan, ...]
    kernels: tuple[KernelSource, ...]
    units: dict[str, str]
    """translation units, path → text"""
    headers: dict[str, str]
    """generated and library headers, path → text"""
    weights: tuple[BoundWeight, ...]
    cache: CacheSchema
    args: ArgsLayout
    rules: RulesLayout


def cpp_program(plans: Sequence[Plan], vocabulary: int, max_positions: int) -> CppProgram:
    """Render every kernel once, and the step program over them."""
    graph = plans[0].graph
    layouts = demanded_layouts(plans)
    weights = bound_weights(graph, layouts)
    cache = cache_schema(graph.caches)
    max_tokens = max(p.sizes.tokens for p in plans)
    args = args_layout(cache, max_tokens, MAX_ROWS, max_positions)
    kernels = {k.name: (k, plan) for plan in reversed(plans) for k in plan.kernels}
    sources = tuple(
        kernel_source(kernel, layouts, argument(kernel, plan))
        for _, (kernel, plan) in sorted(kernels.items())
    )
    rules = rules_layout(vocabulary)
    host = step_program(plans, sorted(kernels), weights, cache, args, rules, vocabulary)
    library = templates_dir() / "cpp" / "lib"
    headers = {f"kg/{p.name}": p.read_text() for p in sorted(library.glob("*.h"))}
    return CppProgram(
        plans=tuple(plans),
        kernels=sources,
        units={s.path: s.text for s in sources} | {"step.cpp": host["step.cpp"]},
        headers=headers | {"kernels.h": host["kernels.h"]},
        weights=weights,
        cache=cache,
        args=args,
        rules=rules,
    )
