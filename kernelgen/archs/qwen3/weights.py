"""Owns the checkpoint names: the shared ones and the two head norms."""

from __future__ import annotations

from kernelgen.archs.decoder_names import decoder_rules
from kernelgen.archs.weight_rules import WeightRules
from kernelgen.spec.model import ModelSpec

_ATTENTION = "model.layers.{layer}.self_attn"


def weight_rules(spec: ModelSpec) -> WeightRules:
    """Where each parameter is in a checkpoint."""
    return decoder_rules(
        spec,
        (f"{_ATTENTION}.q_norm.weight", "layers.{layer}.attn.q_norm.weight"),
        (f"{_ATTENTION}.k_norm.weight", "layers.{layer}.attn.k_norm.weight"),
    )
