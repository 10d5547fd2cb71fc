"""Owns quantisation asked for at load time: the file, its shorthands, whom patterns match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelgen.core.errors import ProblemList, UnsupportedError, UsageError, quote
from kernelgen.formats.format import WeightFormat, weight_format
from kernelgen.formats.matching import Matcher, wildcard_or_regex

SHORTHANDS: Mapping[str, str] = {
    "fp8_per_tensor": "fp8_tensor",
    "fp8_per_channel": "fp8_channel",
    "fp8_per_block": "fp8_block128",
    "mxfp8": "mxfp8",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "int4_per_group_32": "int4_g32",
    "int4_per_group_128": "int4_g128",
    "int8_per_channel_weight_only": "int8_channel",
}
_KEYS = ("linear", "moe", "ignore", "targets")


@dataclass(frozen=True)
class Products:
    """Modules that a file may ask for, by name: matrices, `routed` experts, and `routers`, which
    stay plain unless a target names them; `others` hold no product.
    """

    linear: tuple[str, ...]
    routed: tuple[str, ...] = ()
    routers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Online:
    """`linear`, `moe`: the format of every product of each kind, or None; `targets` in the order of
    the file.
    """

    linear: WeightFormat | None
    moe: WeightFormat | None
    targets: tuple[tuple[Matcher, WeightFormat], ...]
    ignore: tuple[Matcher, ...]

    def chosen(self, products: Products) -> dict[str, WeightFormat]:
        """Module → format. Every contradiction is told at once as a `UsageError`."""
        problems, found = ProblemList("quantization config"), dict[str, WeightFormat]()
        used = set[Matcher]()
        usual = {name: self.linear for name in products.linear if name != "lm_head"}
        usual |= {name: self.moe for name in products.routed}
        for module in products.others:
            for pattern, _ in self.targets:
                if pattern.matches(module):
                    problems.add(f"{pattern.text} matches {module}, which is no product")
        for module in (*products.linear, *products.routed, *products.routers):
            mine = [(p, kind) for p, kind in self.targets if p.matches(module)]
            ignored = [p for p in self.ignore if p.matches(module)]
            used |= {p for p, _ in mine} | set(ignored)
            if len(mine) > 1:
                told = " and ".join(p.text for p, _ in mine)
                problems.add(f"{told} match {module}", allowed="one pattern for a module")
            if mine and ignored:
                problems.add(f"{mine[0][0].text} and ignore {ignored[0].text} match {module}")
            kind = mine[0][1] if mine else usual.get(module)
            if kind is not None and (mine or not ignored):
                found[module] = kind
        for pattern in dict.fromkeys([*(p for p, _ in self.targets), *self.ignore]):
            if pattern not in used:
                problems.add(f"{pattern.text} matches no product of the model")
        problems.raise_if_any()
        return found


def read_online(data: Mapping[str, Any], where: str) -> Online:
    """The parsed file; `UsageError` for keys and values that are none, named."""
    unknown = sorted(set(data) - set(_KEYS))
    if unknown:
        raise UsageError(f"key {quote(unknown[0])}", where=where, allowed=", ".join(_KEYS))
    targets, ignore = data.get("targets"), data.get("ignore") or []
    linear, moe = data.get("linear"), data.get("moe")
    if targets is not None and not isinstance(targets, dict):
        raise UsageError(f"is {quote(targets)}", where=f"{where}: targets", allowed="an object")
    if not isinstance(ignore, list) or not all(isinstance(i, str) for i in ignore):
        raise UsageError(f"is {quote(ignore)}", where=f"{where}: ignore", allowed="list of names")
    for key, value in (("linear", linear), ("moe", moe)):
        if targets and value is not None:
            raise UsageError(f"{key} and targets exclude each other", where=where)
    if not targets and linear is None and moe is None:
        raise UsageError("asks for nothing", where=where, allowed="linear, moe or targets")
    return Online(
        None if linear is None else online_format(linear, f"{where}: linear"),
        None if moe is None else online_format(moe, f"{where}: moe"),
        tuple(
            (wildcard_or_regex(str(name)), online_format(kind, f"{where}: targets.{name}"))
            for name, kind in (targets or {}).items()
        ),
        tuple(wildcard_or_regex(name) for name in ignore),
    )


def online_format(name: Any, where: str) -> WeightFormat:
    """A shorthand's format, or the one so called; zero points are never chosen."""
    if isinstance(name, str) and name in SHORTHANDS:
        return weight_format(SHORTHANDS[name])
    try:
        found = weight_format(name) if isinstance(name, str) else None
    except UnsupportedError:
        found = None
    if found is None or found.zero:
        allowed = f"{', '.join(SHORTHANDS)}, or a format without zero points"
        raise UnsupportedError(f"is {quote(name)}", where=where, allowed=allowed)
    return found
