"""Owns reading rotary embeddings from config fields, in the old and in the new spelling."""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelgen.core.errors import quote
from kernelgen.spec.fields import Fields
from kernelgen.spec.rope import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling

DEFAULT_THETA = 10000.0
_THETA = (2.0, 1e12)
_FACTOR = (1.0, 1e4)
_POSITIONS = (1, 1 << 22)
_HARMLESS = {"finetuned", "rope_type", "type", "rope_theta"}

Scaling = LinearScaling | Llama3Scaling | YarnScaling | None


def theta_fits(theta: float) -> bool:
    """Whether a base is within the range that we take."""
    return _THETA[0] <= theta <= _THETA[1]


def read_rope(fields: Fields, dim: int, max_positions: int) -> RopeSpec:
    """Old form: `rope_theta` and `rope_scaling`; new form: `rope_parameters` holds both.

    Where both forms are present they must agree. Problems are noted in `fields`.
    """
    section = _section(fields)
    theta = _theta(fields, section)
    if dim % 2:
        odd = fields.sound("head_dim", "hidden_size", "num_attention_heads")
        message = f"is {dim} (given, or hidden_size / num_attention_heads)"
        fields.require(
            not odd, "head_dim", message, "an even number, since elements rotate in pairs"
        )
        dim += 1
    for holder in (fields, section):
        if holder is not None and holder.raw("partial_rotary_factor") not in (None, 1, 1.0):
            holder.refuse("partial_rotary_factor", "rotates a part of each head", "1")
    return RopeSpec(dim, theta, _scaling(section, fields, max_positions))


def _section(fields: Fields) -> Fields | None:
    """The object with the scaling: both spellings, agreeing where both are there."""
    old, new = fields.raw("rope_scaling"), fields.raw("rope_parameters")
    if old and new and old != new:
        fields.require(False, "rope_scaling", "contradicts rope_parameters", "one of the two")
    return fields.section("rope_scaling") if old else fields.section("rope_parameters")


def _theta(fields: Fields, section: Fields | None) -> float:
    outer = fields.number("rope_theta", *_THETA, DEFAULT_THETA, nullable=True)
    if section is None or "rope_theta" not in section:
        return outer
    inner = section.number("rope_theta", *_THETA)
    if "rope_theta" in fields and inner != outer:
        fields.require(False, "rope_theta", f"is {outer:g}, elsewhere {inner:g}", "one value")
    return inner


def _scaling(section: Fields | None, fields: Fields, max_positions: int) -> Scaling:
    if section is None:
        return None
    old, new = section.raw("type"), section.raw("rope_type")
    kind = new if new is not None else old
    if kind is None:
        kind = "default"
    if old is not None and new is not None and old != new:
        section.require(False, "type", f"is {quote(old)}, rope_type {quote(new)}", "one value")
    if not isinstance(kind, str) or kind not in _READERS:
        section.refuse("rope_type", f"is {quote(kind)}", ", ".join(_READERS))
        return None
    scaling = _READERS[kind](section, _original(fields, section, kind, max_positions))
    for name, value in section.unused().items():
        if name not in _HARMLESS and value not in (None, False):
            section.refuse(_shown(name), f"is not something that rope type {kind} knows")
    return scaling


def _shown(name: str) -> str:
    return name if name.isidentifier() and len(name) <= 80 else quote(name)


def _original(fields: Fields, section: Fields, kind: str, max_positions: int) -> int:
    """Context length before scaling; a top-level field wins, as in the reference framework."""
    if kind not in ("llama3", "yarn"):
        return max_positions
    name = "original_max_position_embeddings"
    inner = section.integer(name, *_POSITIONS, max_positions, nullable=True)
    return fields.integer(name, *_POSITIONS, inner, nullable=True)


def _read_default(section: Fields, original: int) -> None:
    return None


def _read_linear(section: Fields, original: int) -> LinearScaling:
    return LinearScaling(section.number("factor", *_FACTOR))


def _read_llama3(section: Fields, original: int) -> Llama3Scaling:
    low = section.number("low_freq_factor", 1e-3, 1e3)
    high = section.number("high_freq_factor", 1e-3, 1e3)
    section.require(
        low < high, "low_freq_factor", f"is {low:g}", f"less than high_freq_factor = {high:g}"
    )
    return Llama3Scaling(section.number("factor", *_FACTOR), low, high, original)


def _read_yarn(section: Fields, original: int) -> YarnScaling:
    factor = section.number("factor", *_FACTOR)
    fast = section.number("beta_fast", 1e-3, 1e6, 32.0, nullable=True)
    slow = section.number("beta_slow", 1e-3, 1e6, 1.0, nullable=True)
    section.require(slow <= fast, "beta_slow", f"is {slow:g}", f"at most beta_fast = {fast:g}")
    return YarnScaling(
        factor=factor,
        original_positions=original,
        beta_fast=fast,
        beta_slow=slow,
        attention=_yarn_attention(section, factor),
        truncate=section.flag("truncate", True),
    )


def _yarn_attention(section: Fields, factor: float) -> float:
    def of(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0

    over = section.number("mscale", 0.0, 100.0, 0.0, nullable=True)
    under = section.number("mscale_all_dim", 0.0, 100.0, 0.0, nullable=True)
    derived = of(over) / of(under) if over and under else of(1.0)
    return section.number("attention_factor", 1e-3, 1e3, derived, nullable=True)


_READERS: dict[str, Callable[[Fields, int], Scaling]] = {
    "default": _read_default,
    "linear": _read_linear,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
}
