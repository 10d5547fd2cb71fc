"""Owns what an announcement is: rules from module names to format and packing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelgen.core.errors import UnsupportedError, UsageError, quote
from kernelgen.formats.format import GROUPS, WHOLE, integer_format
from kernelgen.formats.matching import Matcher

WHERE = "quantization_config"
HEAD = Matcher("exact", "lm_head")
EVERY = Matcher("all", "")


@dataclass(frozen=True)
class Scheme:
    """Format (by name) and packing (by name) of a module's matrix."""

    format: str
    packing: str


@dataclass(frozen=True)
class Announcement:
    """Rules of one config, first match first; `ignore` wins. `cache`: what it wants of the KV
    cache, in its own words."""

    method: str
    rules: tuple[tuple[Matcher, Scheme | None], ...]
    ignore: tuple[Matcher, ...] = ()
    cache: str = ""

    def but(self, plain: Sequence[str]) -> Announcement:
        """The same, which says nothing of modules that one of the expressions matches whole."""
        more = tuple(Matcher("regex", rf"(?:{text})\Z") for text in plain)
        return replace(self, ignore=(*self.ignore, *more))

    def scheme(self, module: str) -> Scheme | None:
        """How the module (`model.layers.0.mlp.down_proj`) is said to be stored; None: plainly."""
        if any(pattern.matches(module) for pattern in self.ignore):
            return None
        return next((scheme for pattern, scheme in self.rules if pattern.matches(module)), None)


def names_in(config: Mapping[str, Any], *keys: str) -> list[str]:
    """The first of several lists of names that is there."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise UsageError(f"is {quote(value)}", where=f"{WHERE}.{key}", allowed="list of names")
        return value
    return []


def unsupported(field: str, value: Any, allowed: str) -> UnsupportedError:
    """The error of a field whose value is not covered."""
    return UnsupportedError(f"is {quote(value)}", where=f"{WHERE}.{field}", allowed=allowed)


def not_converted(config: Mapping[str, Any]) -> tuple[Matcher, ...]:
    """Names of modules as the reference library has them: parts of a path, or with wildcards."""
    return tuple(
        Matcher("wildcard" if "*" in name else "path", name)
        for name in names_in(config, "modules_to_not_convert", "ignored_layers")
    )


def integer_name(bits: Any, group: Any, half: bool, zero: bool, field: str = "bits") -> str:
    """Name of the format of integers; group −1 or null is one scale a row."""
    if bits not in range(2, 9) or isinstance(bits, bool):
        raise unsupported(field, bits, "2 to 8")
    if group in (-1, None):
        if zero:
            raise unsupported("group_size", group, "a group size, where there are zero points")
        return integer_format(bits, WHOLE, half=False, zero=False)
    if group not in GROUPS or isinstance(group, bool):
        raise unsupported("group_size", group, f"-1 or {', '.join(map(str, GROUPS))}")
    return integer_format(bits, group, half=half, zero=zero)
