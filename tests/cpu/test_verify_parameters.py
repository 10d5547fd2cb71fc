"""Reading checkpoints for references: what is missing, mis-shaped or damaged is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kernelgen.archs.weight_rules import TensorRule, WeightRules, checkpoint_tensors
from kernelgen.core.dtypes import FLOAT32
from kernelgen.core.errors import KernelgenError, UsageError
from kernelgen.ir.graph import BlockBuilder, Graph, Placement, Role
from kernelgen.ir.types import Dim, Type
from kernelgen.ops import Linear
from kernelgen.verify.parameters import load_parameters

RULES = [TensorRule("a", (2, 3), "layers.0.a"), TensorRule("b", (4,), "b")]
GOOD = {"a": torch.ones(2, 3), "b": torch.arange(4.0), "more": torch.zeros(1)}


def test_tensors_come_from_all_files_by_parameter(tmp_path: Path) -> None:
    save_file({"a": GOOD["a"]}, tmp_path / "x-1.safetensors")
    save_file({"b": GOOD["b"], "more": GOOD["more"]}, tmp_path / "x-2.safetensors")
    found = load_parameters(tmp_path, RULES)
    assert set(found) == {"layers.0.a", "b"} and torch.equal(found["b"], GOOD["b"])


def test_missing_and_misshaped_tensors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 tensors are missing: a, b"):
        load_parameters(tmp_path, RULES)
    save_file({"a": torch.ones(3, 2), "b": GOOD["b"]}, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match=r"tensor a has the shape \[3, 2\] \(allowed: \[2, 3\]\)"):
        load_parameters(tmp_path, RULES)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(UsageError, match=r"x\.safetensors: is damaged"):
        load_parameters(tmp_path, RULES)


def graph(*names: str) -> Graph:
    b = BlockBuilder("layer")
    x = b.declare("x", Type((Dim.T, 4), FLOAT32), Role.STREAM)
    for name in names:
        weight = b.declare(f"{name}.weight", Type((4, 4), FLOAT32), Role.WEIGHT)
        x = b.apply(name, Linear(FLOAT32), x, weight)
    return Graph("m", (b.build([("x", x)]),), (Placement(0, 0), Placement(0, 1)))


def test_rules_fill_in_layer_and_part() -> None:
    rules = WeightRules((("block{layer}/p/{part}", "layers.{layer}.p.{part}"),))
    assert [(r.name, r.shape, r.parameter) for r in checkpoint_tensors(rules, graph("p"))] == [
        ("block0/p/weight", (4, 4), "layers.0.p.weight"),
        ("block1/p/weight", (4, 4), "layers.1.p.weight"),
    ]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ((("p", "layers.{layer}.p.weight"),), "tensor p fills both layers.0.p.weight and layers.1"),
        ((("p{layer}", "layers.{layer}.p.bias"),), "no rule names the tensor of parameter"),
        ((("p{layer}", "layers.{layer}.pxweight"),), "no rule names the tensor of parameter"),
    ],
)
def test_rules_that_do_not_fit(pairs, message) -> None:
    with pytest.raises(KernelgenError, match=message):
        checkpoint_tensors(WeightRules(pairs), graph("p"))
