"""Owns the type of the cache of a named model: what is asked, announced, and where scales lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelgen.archs.weight_rules import TensorRule
from kernelgen.core.errors import UnsupportedError, quote
from kernelgen.lower.float8_cache import SCALES

CHOICES = ("auto", "fp8", "bfloat16", "float32")
_ANNOUNCED = {"": False, "fp8": True, "fp8_e4m3": True}
ScaleNames = tuple[tuple[str, ...], tuple[str, ...]]
SCALE_TENSORS = r".+\.(?:[kvq]_scale|kv_scale|[kvq]_proj\.(?:[kvq]|output)_scale)"
"""expression of the checkpoint's names: which of them is read is decided when it is loaded"""


def narrow_cache(asked: str, activations: str, announced: str) -> bool:
    """Whether keys and values are kept as fp8. `UnsupportedError` for types that no kernel has."""
    if asked == "auto":
        if announced not in _ANNOUNCED:
            raise UnsupportedError(
                f"the checkpoint announces a cache of {quote(announced)}",
                where="kv cache",
                allowed="fp8",
                hint=f"--kv-cache-dtype {activations} does not follow it",
            )
        return _ANNOUNCED[announced]
    if asked not in ("fp8", activations):
        raise UnsupportedError(
            f"a cache of {asked} beside activations of {activations}",
            where="--kv-cache-dtype",
            allowed=f"auto, fp8, {activations}",
        )
    return asked == "fp8"


def scale_names(rules: Sequence[TensorRule]) -> Mapping[str, ScaleNames]:
    """Parameter `layers.<i>.attn.kv_scales` → tensors that may hold the scale of keys, of values.

    compressed-tensors and vLLM write them beside the projections, ModelOpt below them; older files
    have one for both, or call them scales of the projections' outputs.
    """
    found: dict[str, ScaleNames] = {}
    for rule in rules:
        head, _, rest = rule.parameter.partition(".attn.k.")
        if rest != "weight":
            continue
        module = rule.name.removesuffix(".weight").rsplit(".", 1)[0]
        k, v = (
            (
                f"{module}.{side}_scale",
                f"{module}.attn.{side}_scale",
                f"{module}.{side}_proj.{side}_scale",
                f"{module}.kv_scale",
                f"{module}.{side}_proj.output_scale",
            )
            for side in ("k", "v")
        )
        found[f"{head}.attn.{SCALES}"] = (k, v)
    return found
