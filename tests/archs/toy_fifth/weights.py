"""Owns the checkpoint names, none of which another architecture uses."""

from __future__ import annotations

from kernelgen.archs.weight_rules import WeightRules
from kernelgen.spec.model import ModelSpec


def weight_rules(spec: ModelSpec) -> WeightRules:
    """Where each parameter is in a checkpoint."""
    del spec  # the same for every size
    return WeightRules(
        pairs=(
            ("tokens.table", "embed.weight"),
            ("blocks.{layer}.scale", "layers.{layer}.norm.weight"),
            ("blocks.{layer}.query", "layers.{layer}.attn.q.weight"),
            ("blocks.{layer}.key", "layers.{layer}.attn.k.weight"),
            ("blocks.{layer}.value", "layers.{layer}.attn.v.weight"),
            ("blocks.{layer}.out", "layers.{layer}.attn.o.weight"),
            ("blocks.{layer}.gate", "layers.{layer}.mlp.gate.weight"),
            ("blocks.{layer}.up", "layers.{layer}.mlp.up.weight"),
            ("blocks.{layer}.down", "layers.{layer}.mlp.down.weight"),
            ("final.scale", "head_norm.weight"),
        ),
        ignored=(r"optimizer\..*",),
    )
