"""Quantised models with routed experts: stacks of experts stay plain or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelgen.archs.registry import architectures
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import lowered
from kernelgen.core.errors import KernelgenError, UnsupportedError
from kernelgen.formats import weight_format
from kernelgen.formats.announced import read_announcement
from kernelgen.formats.online import read_online
from kernelgen.formats.several import refuse_several
from kernelgen.ir.parameters import parameters
from kernelgen.ir.reformat import with_formats

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


def test_linear_leaves_stacks_plain_and_says_so(tmp_path: Path) -> None:
    model = asked(routed(tmp_path), {"linear": "fp8_per_channel"})
    packed = {
        p.name for p in parameters(model.graph) if p.type.dtype == weight_format("fp8_channel")
    }
    assert packed and packed == set(model.matrices)
    assert not any(len(p.type.shape) == 3 for p in parameters(model.graph) if p.name in packed)
    assert any("tensors of several matrices stay plain" in note for note in model.notes)


def test_a_target_on_a_stack_is_refused_by_name(tmp_path: Path) -> None:
    folder = routed(tmp_path)
    plain = lowered(resolve(str(folder)), "bfloat16")
    rules = plain.architecture.checkpoint(plain.spec, plain.graph)
    names = {r.name.removesuffix(".weight") for r in rules if r.take or len(r.shape) == 3}
    assert len(names) > 1
    for name in sorted(names)[:4]:
        with pytest.raises(UnsupportedError) as told:
            asked(folder, {"targets": {name: "fp8_per_channel"}})
        assert name in str(told.value)


def test_an_announced_stack_is_refused_by_name(tmp_path: Path) -> None:
    folder = routed(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": FP8}))
    with pytest.raises(UnsupportedError, match="tensor of several matrices"):
        lowered(resolve(str(folder)), "bfloat16")


@pytest.mark.parametrize(
    ("config", "header", "refused"),
    [
        (FP8, None, True),
        (SKIPPED, None, False),
        (FP8, {STACK: ("BF16", (4, 8, 8))}, False),
        (FP8, {STACK: ("F8_E4M3", (4, 8, 8))}, True),
        (SKIPPED, {STACK: ("F8_E4M3", (4, 8, 8))}, True),
        (SKIPPED, {f"{STACK}_packed": ("I32", (4, 8, 1))}, True),
        (SKIPPED, {f"{STACK}.qweight": ("I32", (4, 1, 8))}, True),
        (SKIPPED, {f"{STACK[:-1]}x": ("I32", (4, 1, 8))}, False),
        (FP8, {}, True),
    ],
)
def test_what_the_header_shows_decides(config: Any, header: Any, refused: bool) -> None:
    announcement = read_announcement(config, False)
    if not refused:
        assert refuse_several([STACK], announcement, None, header) == ()
        return
    with pytest.raises(UnsupportedError, match=f"{STACK} is quantised"):
        refuse_several([STACK], announcement, None, header)


def test_experts_cannot_be_asked_for() -> None:
    with pytest.raises(UnsupportedError, match="experts are not quantised at load"):
        read_online({"linear": "fp8_per_channel", "moe": "fp8_per_channel"}, "online.json")


def test_no_graph_has_a_quantised_stack(tmp_path: Path) -> None:
    graph = lowered(resolve(str(routed(tmp_path))), "bfloat16").graph
    stack = next(p.name for p in parameters(graph) if len(p.type.shape) == 3)
    with pytest.raises(KernelgenError, match="only matrices are"):
        with_formats(graph, {stack: weight_format("fp8_channel")})
