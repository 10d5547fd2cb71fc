"""What kernels of a model that mixes over depth do together, on a GPU, one token at a time."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from conftest import HERE, folders, subject_of

from kernelgen.codegen.families import catalogue
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.hw import parse_target
from kernelgen.planner.plan import Plan
from kernelgen.planner.planner import Planner
from kernelgen.tables import Tables

SUBJECT = next(
    s for s in (subject_of(f) for f in folders() if f.parent != HERE) if "text_config" in s.config
)
TOGETHER = {
    "scan: convolutions, recurrence and gated norm": ("attn.q_conv", "attn.scan", "attn.norm"),
    "scan: one product for all that reads the block's input": (
        "attn.q", "attn.k", "attn.v", "attn.decay_down", "attn.beta", "attn.gate",
    ),
    "experts: router, narrow copy and shared expert read the row once": (
        "mlp.router", "mlp.latent_down", "mlp.shared.gate", "mlp.shared.up", "mlp.shared.act",
    ),
    "experts: added up where they are computed": ("mlp.experts.down", "mlp.experts.sum"),
    "experts: the norm of their sum and the way back to the row": (
        "mlp.latent_norm.stat", "mlp.latent_norm", "mlp.latent_up",
    ),
}  # fmt: skip


@cache
def plan() -> Plan:
    device = parse_target("sm_90")
    graph = SUBJECT.architecture.lower(SUBJECT.spec, BFLOAT16)
    families = catalogue(device, Tables(Path("no rows")))
    return Planner(graph, device, device.target, families, context=256).plan("decode", 1)


@pytest.mark.parametrize("what", TOGETHER)
def test_kernels_take_together(what: str) -> None:
    of_kernels = [{n.name for n in k.match.region.nodes} for k in plan().kernels]
    assert any(set(TOGETHER[what]) <= nodes for nodes in of_kernels)


@pytest.mark.row("R-026")
def test_a_mixture_is_one_kernel_of_rows() -> None:
    """However many sources it has; nobody spells it as scores, powers and sums."""
    mixing = [
        (kernel, node)
        for kernel in plan().kernels
        for node in kernel.match.region.nodes
        if node.op.kind == "depth_mix"
    ]
    assert {kernel.match.family.name for kernel, _ in mixing} == {"rows"}
    assert {len(node.inputs) - 2 for _, node in mixing} == {2, 3}
