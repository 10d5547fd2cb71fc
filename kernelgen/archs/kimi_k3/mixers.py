"""Owns which layers scan and which attend, by the config's lists, and what each of them is."""

from __future__ import annotations

from typing import Any

from kernelgen.core.errors import quote
from kernelgen.spec.fields import Fields
from kernelgen.spec.model import DeltaSpec, LatentSpec

_HEADS, _DIM, _RANK = 1024, 1024, 1 << 14
_SECTION = "linear_attn_config"
LOWEST_BOUND = -5.0
"""sixteen tokens at it are the most that differences of float32 exponents hold"""
LATENT_EPS = 1e-6
"""of the norms of latents: the default of their class, whatever `rms_norm_eps` says"""


def read_mixers(fields: Fields, layers: int) -> list[DeltaSpec | LatentSpec]:
    """One for each layer. The lists count layers from 1 and have to name each of them once."""
    latent = _latent(fields)
    section = fields.section(_SECTION)
    if section is None:
        fields.note_wrong(_SECTION, fields.raw(_SECTION), "an object")
        return [latent] * layers
    delta = _delta(section)
    scanning = _numbers(section, "kda_layers", layers)
    attending = _numbers(section, "full_attn_layers", layers)
    if fields.sound("num_hidden_layers") and section.sound("kda_layers", "full_attn_layers"):
        _once_each(section, [*scanning, *attending], layers)
    for name, value in section.unused().items():
        shown = name if name.isidentifier() and len(name) <= 80 else quote(name)
        section.refuse(shown, f"is {quote(value)}, which this architecture does not know")
    chosen = set(scanning)
    return [delta if i + 1 in chosen else latent for i in range(layers)]


def _delta(section: Fields) -> DeltaSpec:
    dim = section.integer("head_dim", 2, _DIM)
    section.require(dim % 2 == 0, "head_dim", f"is {dim}", "an even number")
    bound = None
    if "gate_lower_bound" in section:
        bound = section.number("gate_lower_bound", LOWEST_BOUND, -1e-6)
    else:
        section.raw("gate_lower_bound")
    return DeltaSpec(
        heads=section.integer("num_heads", 1, _HEADS),
        head_dim=dim,
        taps=section.integer("short_conv_kernel_size", 2, 16, 4),
        decay_rank=dim,
        gate_rank=None if section.flag("use_full_rank_gate", False) else dim,
        bound=bound,
    )


def _latent(fields: Fields) -> LatentSpec:
    heads = fields.integer("num_attention_heads", 1, _HEADS)
    kv_heads = fields.integer("num_key_value_heads", 1, _HEADS, heads, nullable=True)
    if fields.sound("num_attention_heads", "num_key_value_heads"):
        allowed = f"num_attention_heads = {heads}: all heads share one latent"
        fields.require(kv_heads == heads, "num_key_value_heads", f"is {kv_heads}", allowed)
    if not fields.flag("mla_use_nope", True):
        fields.refuse("mla_use_nope", "is false: latent attention with rotation", "true")
    query_rank = None
    if "q_lora_rank" in fields:
        query_rank = fields.integer("q_lora_rank", 1, _RANK)
    else:
        fields.raw("q_lora_rank")
    return LatentSpec(
        heads=heads,
        rank=fields.integer("kv_lora_rank", 1, _RANK, 512),
        nope=fields.integer("qk_nope_head_dim", 1, _DIM, 128),
        beside=fields.integer("qk_rope_head_dim", 1, _DIM, 64),
        value_dim=fields.integer("v_head_dim", 1, _DIM, 128),
        norm_eps=LATENT_EPS,
        query_rank=query_rank,
        gate=fields.flag("mla_use_output_gate", False),
    )


def _numbers(section: Fields, name: str, layers: int) -> list[int]:
    """A list of layers, counted from 1; empty where it is none."""
    value: Any = section.raw(name)
    allowed = f"an array of layers, from 1 to {layers}"
    if not isinstance(value, list):
        section.note_wrong(name, value, allowed)
        return []
    for i, number in enumerate(value):
        if type(number) is not int or not 1 <= number <= layers:
            section.note_wrong(f"{name}[{i}]", number, f"a layer, from 1 to {layers}")
            section.require(False, name, "names what is no layer", allowed)
            return []
    return value


def _once_each(section: Fields, named: list[int], layers: int) -> None:
    """Notes layers that are named twice, and those that nothing names."""
    count = [0] * (layers + 1)
    for number in named:
        count[number] += 1
    twice = [n for n in range(1, layers + 1) if count[n] > 1]
    never = [n for n in range(1, layers + 1) if count[n] == 0]
    allowed = "each layer once, in it or in full_attn_layers"
    section.require(not twice, "kda_layers", f"layer {twice[:1]} is named twice", allowed)
    section.require(not never, "kda_layers", f"layer {never[:1]} is named nowhere", allowed)
