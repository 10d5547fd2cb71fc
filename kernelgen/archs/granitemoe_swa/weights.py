"""Owns the checkpoint names: sinks, the router, experts in stacks, gate above up in one tensor."""

from __future__ import annotations

from kernelgen.archs.decoder_names import decoder_rules
from kernelgen.archs.weight_rules import WeightRules
from kernelgen.spec.model import ModelSpec

_IN, _OUT = "model.layers.{layer}", "layers.{layer}"
_ROUTED, _SHARED = f"{_OUT}.mlp.experts", f"{_OUT}.mlp.shared"


def weight_rules(spec: ModelSpec) -> WeightRules:
    """Where each parameter is in a checkpoint; sinks and expert stacks have no `.weight`."""
    layer = spec.layers[0].mlp
    shared = getattr(layer, "shared", None) is not None
    pairs = [
        (f"{_IN}.self_attn.sinks", f"{_OUT}.attn.sinks"),
        (f"{_IN}.block_sparse_moe.router.weight", f"{_OUT}.mlp.router.weight"),
        (f"{_IN}.block_sparse_moe.experts.down_proj", f"{_ROUTED}.down.weight"),
    ]
    packed = [
        (
            f"{_IN}.block_sparse_moe.experts.gate_up_proj",
            (f"{_ROUTED}.gate.weight", f"{_ROUTED}.up.weight"),
        )
    ]
    if shared:
        pairs.append((f"{_IN}.shared_mlp.output_linear.weight", f"{_SHARED}.down.weight"))
        packed.append(
            (
                f"{_IN}.shared_mlp.input_linear.weight",
                (f"{_SHARED}.gate.weight", f"{_SHARED}.up.weight"),
            )
        )
    return decoder_rules(spec, *pairs, packed=tuple(packed))
