"""Rules for tensors that lie otherwise in a file: a matrix an expert, other axes, spare entries."""

from __future__ import annotations

import pytest
import torch

from kernelgen.archs.weight_rules import WeightRules, assembled, checkpoint_tensors
from kernelgen.core.dtypes import FLOAT32
from kernelgen.core.errors import KernelgenError
from kernelgen.ir.graph import BlockBuilder, Graph, Placement, Role
from kernelgen.ir.types import Dim, Type

SHAPES = {
    "stack.weight": (3, 4, 5),
    "up.weight": (2, 3, 5),
    "wide.weight": (2, 4, 5),
    "taps.weight": (6, 4),
    "rate": (4,),
}
RULES = WeightRules(
    pairs=(
        ("l{layer}.experts.{expert}.w", "layers.{layer}.stack.weight"),
        ("l{layer}.conv", "layers.{layer}.taps.weight"),
        ("l{layer}.rate", "layers.{layer}.rate"),
    ),
    packed=(("l{layer}.both", ("layers.{layer}.up.weight", "layers.{layer}.wide.weight")),),
    stored=(
        ("l{layer}.conv", lambda s: (s[0], 1, s[1])),
        ("l{layer}.rate", lambda s: (s[0] + 2,)),
        ("l{layer}.both", lambda s: (s[0] * s[1], s[2])),
    ),
)


def graph() -> Graph:
    builder = BlockBuilder("layer")
    x = builder.declare("x", Type((Dim.T, 4), FLOAT32), Role.STREAM)
    for name, shape in SHAPES.items():
        builder.declare(name, Type(shape, FLOAT32), Role.WEIGHT)
    return Graph("m", (builder.build([("x", x)]),), (Placement(0, 0), Placement(0, 1)))


def test_every_element_goes_where_it_belongs() -> None:
    rules = checkpoint_tensors(RULES, graph())
    tensors = {
        rule.name: torch.arange(int(torch.tensor(rule.shape).prod())).view(rule.shape)
        for rule in rules
    }
    assert {n: tuple(t.shape) for n, t in tensors.items() if n.startswith("l1.")} == {
        "l1.experts.0.w": (4, 5),
        "l1.experts.1.w": (4, 5),
        "l1.experts.2.w": (4, 5),
        "l1.both": (14, 5),
        "l1.conv": (6, 1, 4),
        "l1.rate": (6,),
    }
    found = assembled(rules, tensors.get)
    assert {name: tuple(t.shape) for name, t in found.items()} == {
        f"layers.{i}.{name}": shape for i in (0, 1) for name, shape in SHAPES.items()
    }
    stack = torch.stack([tensors[f"l1.experts.{e}.w"] for e in range(3)])
    assert torch.equal(found["layers.1.stack.weight"], stack)
    both = tensors["l0.both"].view(2, 7, 5)
    assert torch.equal(found["layers.0.up.weight"], both[:, :3])
    assert torch.equal(found["layers.0.wide.weight"], both[:, 3:])
    assert torch.equal(found["layers.0.taps.weight"], tensors["l0.conv"][:, 0])
    assert found["layers.0.rate"].tolist() == [0, 1, 2, 3], "the first ones of six"


def test_what_is_missing_is_left_out() -> None:
    rules = checkpoint_tensors(RULES, graph())
    assert assembled(rules, {"l0.conv": torch.ones(6, 1, 4)}.get).keys() == {"layers.0.taps.weight"}


def test_two_parameters_cannot_have_one_tensor() -> None:
    rules = WeightRules((*RULES.pairs, ("l{layer}.conv", "layers.{layer}.up.weight")))
    with pytest.raises(KernelgenError, match=r"fills both|no rule names"):
        checkpoint_tensors(rules, graph())
