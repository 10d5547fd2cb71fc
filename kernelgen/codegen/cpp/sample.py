"""Owns the C++ of the choice of a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.codegen.cpp.expressions import cpp_name
from kernelgen.planner.plan import Kernel


def sample_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/sample.cpp.j2` needs."""
    region = kernel.match.region
    node = region.nodes[0]
    logits = region.value(region.base(node.inputs[0]))
    return {
        "logits": cpp_name(logits.name),
        "sampled": cpp_name(node.outputs[0]),
        "vocabulary": logits.type.row_width,
    }
