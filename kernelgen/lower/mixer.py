"""Owns which building block mixes the tokens of a layer, and what it keeps between steps."""

from __future__ import annotations

from kernelgen.lower.attention import attention
from kernelgen.lower.delta import delta_mixer
from kernelgen.lower.latent import latent_attention
from kernelgen.lower.scope import Numerics, Scope
from kernelgen.spec.model import (
    AttentionSpec,
    CacheSpec,
    DeltaSpec,
    KeptSpec,
    LatentCacheSpec,
    LatentSpec,
    MixerSpec,
    StateSpec,
)


def mixer(scope: Scope, name: str, x: str, spec: MixerSpec, norm_eps: float) -> str:
    """The tokens of each request mixed, as wide as `x`; `norm_eps` is that of norms inside."""
    if isinstance(spec, DeltaSpec):
        return delta_mixer(scope, name, x, spec, norm_eps)
    if isinstance(spec, LatentSpec):
        return latent_attention(scope, name, x, spec)
    return attention(scope, name, x, spec, norm_eps)


def kept(spec: MixerSpec, numerics: Numerics) -> tuple[KeptSpec, ...]:
    """What a layer keeps, in the order in which `mixer` declares it."""
    if isinstance(spec, AttentionSpec):
        keys = spec.kv_heads, spec.head_dim, spec.window, numerics.cache
        return (CacheSpec(*keys, spec.kv_share_with),)
    if isinstance(spec, LatentSpec):
        return (LatentCacheSpec(spec.rank + spec.beside, numerics.cache),)
    window = StateSpec((spec.taps - 1, spec.heads * spec.head_dim), numerics.activation)
    memory = StateSpec((spec.heads, spec.head_dim, spec.head_dim), numerics.vector)
    return (window, window, window, memory)
