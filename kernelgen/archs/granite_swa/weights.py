"""Owns the checkpoint names: the shared ones and one vector of sinks for each layer."""

from __future__ import annotations

from kernelgen.archs.decoder_names import decoder_rules
from kernelgen.archs.weight_rules import WeightRules
from kernelgen.spec.model import ModelSpec


def weight_rules(spec: ModelSpec) -> WeightRules:
    """Where each parameter is in a checkpoint; the sinks' name has no `.weight`."""
    return decoder_rules(
        spec, ("model.layers.{layer}.self_attn.sinks", "layers.{layer}.attn.sinks")
    )
