"""Quantised experts as data: which tensors are packed, which are quantised at load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelgen.archs.registry import architectures
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import lowered
from kernelgen.codegen.families import catalogue
from kernelgen.core.errors import KernelgenError
from kernelgen.formats import WeightFormat, weight_format
from kernelgen.formats.announced import read_announcement
from kernelgen.formats.assign import Held, Part, Several, assign
from kernelgen.hw import parse_target
from kernelgen.ir.parameters import parameters
from kernelgen.ir.reformat import with_formats
from kernelgen.planner.planner import Planner

STACK = "model.layers.0.experts.gate_up"
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
SKIPPED = FP8 | {"modules_to_not_convert": ["experts"]}


def routed(tmp_path: Path) -> Path:
    """A folder with the config of a tiny model whose checkpoint has experts in stacks."""
    for architecture in architectures().values():
        text = (architecture.folder / "tiny.json").read_text()
        (tmp_path / "config.json").write_text(text)
        model = lowered(resolve(str(tmp_path)), "bfloat16")
        if any(len(p.type.shape) == 3 for p in parameters(model.graph)):
            return tmp_path
    raise AssertionError("no architecture has routed experts")


def asked(folder: Path, data: dict[str, Any]) -> Any:
    path = folder / "online.json"
    path.write_text(json.dumps(data))
    return lowered(resolve(str(folder)), "bfloat16", path)


def formats_in(model: Any) -> dict[str, str]:
    """Kind of parameter → format, of what is packed: `mlp.experts.up`, `mlp.router`, …"""
    found: dict[str, set[str]] = {}
    for p in parameters(model.graph):
        if isinstance(p.type.dtype, WeightFormat):
            kind = ".".join(p.name.split(".")[2:-1])
            found.setdefault(kind, set()).add(p.type.dtype.name)
    assert all(len(kinds) == 1 for kinds in found.values())
    return {kind: names.pop() for kind, names in found.items()}


def test_linear_leaves_experts_and_the_router_plain(tmp_path: Path) -> None:
    found = formats_in(asked(routed(tmp_path), {"linear": "fp8_per_channel"}))
    assert {"attn.q", "mlp.shared.gate", "mlp.shared.up", "mlp.shared.down"} <= set(found)
    assert not any(".experts." in kind or kind.endswith("router") for kind in found)


def test_experts_have_a_format_of_their_own(tmp_path: Path) -> None:
    model = asked(routed(tmp_path), {"linear": "fp8_per_channel", "moe": "mxfp4"})
    found = formats_in(model)
    experts = {kind: name for kind, name in found.items() if ".experts." in kind}
    assert experts == {f"mlp.experts.{part}": "mxfp4" for part in ("gate", "up", "down")}
    assert found["attn.q"] == "fp8_channel" and "mlp.router" not in found
    gate, up = (
        next(m for name, m in model.matrices.items() if name.endswith(f"experts.{part}.weight"))
        for part in ("gate", "up")
    )
    assert gate.names == up.names and gate.stack == up.stack > 1
    assert gate.take == (0, gate.n, 2 * gate.n) and up.take == (up.n, up.n, 2 * up.n)


def test_targets_name_stacks_and_routers(tmp_path: Path) -> None:
    targets = {"*.experts.down_proj": "int4_per_group_32", "*.router": "fp8_per_tensor"}
    found = formats_in(asked(routed(tmp_path), {"targets": targets}))
    assert found == {"mlp.experts.down": "int4_g32", "mlp.router": "fp8_tensor"}


def test_an_announced_stack_is_packed(tmp_path: Path) -> None:
    folder = routed(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": FP8}))
    found = formats_in(lowered(resolve(str(folder)), "bfloat16"))
    assert found["mlp.experts.up"] == found["mlp.experts.down"] == "fp8_tensor"
    assert found["mlp.shared.up"] == "fp8_tensor"


CODES = {STACK: ("F8_E4M3", (4, 8, 8)), f"{STACK}_scale": ("F32", (4, 1, 1))}


@pytest.mark.parametrize(
    ("config", "header", "wanted"),
    [
        (FP8, None, "fp8_tensor"),
        (SKIPPED, None, ""),
        (FP8, {STACK: ("BF16", (4, 8, 8))}, ""),
        (FP8, CODES, "fp8_tensor"),
        (FP8, CODES | {f"{STACK}_scale": ("F32", (4, 8, 1))}, "fp8_channel"),
        (SKIPPED, CODES, "does not say how"),
        (SKIPPED, {f"{STACK}_packed": ("I32", (4, 8, 1))}, "does not say how"),
        (FP8, {STACK: ("F8_E4M3", (4, 8, 8))}, f"{STACK}_scale"),
        (SKIPPED, {f"{STACK[:-1]}x": ("I32", (4, 1, 8))}, ""),
    ],
)
def test_what_the_header_shows_decides(config: Any, header: Any, wanted: str) -> None:
    announcement = read_announcement(config, False)
    parts = (Part("gate", (4, 4, 8), (0, 4, 8)), Part("up", (4, 4, 8), (4, 4, 8)))
    held = Held({}, several={STACK: Several(STACK, parts, routed=True)})
    if wanted in ("", "fp8_tensor", "fp8_channel"):
        found = assign(held, announcement, None, header).parts
        assert {p: m.kind.name for p, m in found.items()} == (
            dict.fromkeys(("gate", "up"), wanted) if wanted else {}
        )
        return
    with pytest.raises(KernelgenError) as caught:
        assign(held, announcement, None, header)
    assert wanted in str(caught.value)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_every_stack_has_a_plan(target: str, tmp_path: Path) -> None:
    """Quantised stacks are planned in both phases, few rows pair by pair."""
    model = asked(routed(tmp_path), {"moe": "mxfp4"})
    device = parse_target(target)
    planner = Planner(model.graph, device, device.target, catalogue(device))
    families = {k.match.family.name for k in planner.plan("decode", 1).kernels}
    assert "experts_pairs" in families
    assert planner.plan("mixed", 512).launches


def test_a_vector_is_no_matrix(tmp_path: Path) -> None:
    graph = lowered(resolve(str(routed(tmp_path))), "bfloat16").graph
    norm = next(p.name for p in parameters(graph) if len(p.type.shape) == 1)
    with pytest.raises(KernelgenError, match="only matrices are"):
        with_formats(graph, {norm: weight_format("fp8_channel")})
