"""Variants of the tiny configs: what a class allows and its published models do not use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """Fields to set and to drop, and a seed whose greedy margins are wide."""

    seed: int
    set: Mapping[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()

    def apply(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config with the variant's changes."""
        kept = {k: v for k, v in config.items() if k not in self.drop}
        return {**kept, **self.set}


_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}
_PLAIN = {"attention_bias": False, "mlp_bias": False}

VARIANTS: dict[str, dict[str, Variant]] = {
    "llama": {
        "all": Variant(1),
        "published": Variant(
            1, {**_PLAIN, "tie_word_embeddings": True}, ("head_dim", "rope_scaling")
        ),
        "one_kv_head": Variant(1, {"num_key_value_heads": 1, "rope_scaling": None}),
        "own_kv_heads": Variant(4, {"num_key_value_heads": None}),
        "linear": Variant(4, {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
        "yarn": Variant(
            1, {"rope_parameters": {**_YARN, "rope_theta": 5000.0}}, ("rope_theta", "rope_scaling")
        ),
        "llama3": Variant(
            1,
            {"rope_parameters": {**_LLAMA3, "rope_theta": 5000.0}},
            ("rope_theta", "rope_scaling"),
        ),
        "gelu": Variant(4, {"hidden_act": "gelu_pytorch_tanh"}),
    },
    "qwen3": {
        "all": Variant(8),
        "untied": Variant(1, {"tie_word_embeddings": False}),
        "bias": Variant(5, {"attention_bias": True}),
        "window": Variant(
            4, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
        ),
        "yarn": Variant(3, {"rope_parameters": _YARN}, ("rope_theta", "rope_scaling")),
    },
    "kimi_linear": {
        "all": Variant(6),
        "softly": Variant(2, {"num_expert_group": 1, "topk_group": 1}),
        "one_shared": Variant(1, {"num_shared_experts": 1, "moe_renormalize": False}),
    },
    "kimi_k3": {"all": Variant(1)},
    "granitemoe_swa": {
        "all": Variant(1),
        "published": Variant(2, {}, ("layer_rope_theta",)),
        "defaults": Variant(
            3,
            {"num_key_value_heads": None, "shared_intermediate_size": 0},
            ("layer_rope_theta", "layer_types"),
        ),
        "no_shared": Variant(3, {"shared_intermediate_size": 0}),
        "top_1": Variant(2, {"num_experts_per_tok": 1}),
        "top_all": Variant(1, {"num_experts_per_tok": 8}),
        "untied": Variant(1, {"tie_word_embeddings": False}),
        "window_2": Variant(4, {"sliding_window": 2}),
        "bias": Variant(2, {"attention_bias": True, "head_dim": 32, "attention_multiplier": 0.05}),
    },
    "granite_swa": {
        "all": Variant(5),
        "published": Variant(
            5, {**_PLAIN, "attention_multiplier": 0.0625}, ("head_dim", "layer_rope_theta")
        ),
        "defaults": Variant(
            5,
            {**_PLAIN, "num_key_value_heads": None},
            ("head_dim", "layer_rope_theta", "layer_types"),
        ),
        "untied": Variant(5, {"tie_word_embeddings": False}),
        "no_rotation": Variant(1, {"layer_rope_theta": [0] * 6}),
        "all_full": Variant(5, {"layer_types": ["full_attention"] * 6}),
        "all_windows": Variant(5, {"layer_types": ["sliding_attention"] * 6}),
        "window_2": Variant(5, {"sliding_window": 2}),
        "yarn": Variant(5, {"rope_parameters": _YARN}),
    },
}
"""by `model_type`; a window of 1 is left out: the reference framework's cache is wrong for it"""
