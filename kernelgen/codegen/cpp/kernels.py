"""Owns the step from a planned kernel to its C++ source."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.artefact import KernelSource, OperandInfo
from kernelgen.codegen.cpp.attention import attention_context
from kernelgen.codegen.cpp.experts import experts_context, route_context
from kernelgen.codegen.cpp.expressions import cpp_name, cpp_type
from kernelgen.codegen.cpp.latent import head_linear_context, latent_attention_context
from kernelgen.codegen.cpp.linear import linear_context
from kernelgen.codegen.cpp.rows import rows_context
from kernelgen.codegen.cpp.sample import sample_context
from kernelgen.codegen.cpp.scan import delta_scan_context, short_conv_context
from kernelgen.codegen.rendering import render
from kernelgen.core.dtypes import INT32, UINT8
from kernelgen.ir.graph import Role
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel

_CONTEXTS: Mapping[str, Callable[[Kernel, Mapping[str, str]], dict[str, Any]]] = {
    "linear": linear_context,
    "attention": attention_context,
    "rows": rows_context,
    "sample": sample_context,
    "route": route_context,
    "experts_pairs": experts_context,
    "experts_sorted": experts_context,
    "short_conv": short_conv_context,
    "delta_scan": delta_scan_context,
    "latent_attention": latent_attention_context,
    "head_linear": head_linear_context,
}
_INFO_ROLES = {
    Role.STREAM: "input",
    Role.TEMP: "input",
    Role.WEIGHT: "weight",
    Role.TABLE: "weight",
    Role.STATE: "cache",
    Role.STEP: "step",
}


@dataclass(frozen=True)
class Parameter:
    """One operand as the kernel's first lines declare it."""

    index: int
    type: str
    name: str
    note: str


def kernel_source(kernel: Kernel, layouts: Mapping[str, str], why: tuple[str, ...]) -> KernelSource:
    """Render one kernel. `layouts`: weight (as named in its block) → layout; `why`: the
    planner's argument, for the header."""
    family = kernel.match.family.name
    context = _CONTEXTS[family](kernel, layouts)
    text = render(
        f"cpp/{family}.cpp.j2",
        name=kernel.name,
        header=_header(kernel, why),
        parameters=_parameters(kernel),
        **context,
    )
    return KernelSource(kernel, f"kernels/{kernel.name}.cpp", text, signature(kernel, layouts))


def signature(kernel: Kernel, layouts: Mapping[str, str]) -> tuple[OperandInfo, ...]:
    """Operands in order, as `kernels.json` lists them."""
    found = []
    for name in kernel.signature:
        if name in (SCRATCH, COUNTERS):
            dtype = UINT8 if name == SCRATCH else INT32
            found.append(OperandInfo(name, name, dtype.name, ()))
            continue
        value = kernel.match.region.value(name)
        role = "output" if name in kernel.match.region.outputs else _INFO_ROLES[value.role]
        shape = tuple(d if isinstance(d, int) else d.value for d in value.type.shape)
        layout = layouts.get(name, "rows")
        found.append(OperandInfo(role, name, value.type.dtype.name, shape, layout))
    return tuple(found)


def _header(kernel: Kernel, why: tuple[str, ...]) -> list[str]:
    """Comment lines: what is computed, and why these ops share a kernel."""
    lines = [f"{kernel.name}: {', '.join(kernel.ops)}"]
    for reason in why:
        lines += textwrap.wrap(reason, width=96, initial_indent="  ", subsequent_indent="    ")
    return lines


def _parameters(kernel: Kernel) -> list[Parameter]:
    """Typed pointers for the operands, in order."""
    found = []
    region = kernel.match.region
    for index, name in enumerate(kernel.signature):
        if name == SCRATCH:
            found.append(Parameter(index, "void", "scratch", "prepared rows, shared by the team"))
            continue
        value = region.value(name)
        if value.role is Role.STATE:
            found.append(
                Parameter(index, "const kg::LayerCache", cpp_name(name), "pages of this layer")
            )
            continue
        const = "" if name in region.outputs else "const "
        note = str(value.type)
        found.append(Parameter(index, f"{const}{cpp_type(value.type.dtype)}", cpp_name(name), note))
    return found
