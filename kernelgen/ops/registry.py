"""Owns finding ops by their kind: those of this package and those an architecture brought along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import kernelgen.ops as _ops
from kernelgen.ir.op import Op

_OWN = {getattr(_ops, name).kind: getattr(_ops, name) for name in _ops.__all__}


def op_kinds() -> Mapping[str, type[Op]]:
    """Every op class that has been imported, by kind; two classes of one kind are a ValueError."""
    found: dict[str, type[Op]] = dict(_OWN)
    for cls in _concrete(Op):  # type: ignore[type-abstract]  # its subclasses are what counts
        if found.setdefault(cls.kind, cls) is not cls:
            raise ValueError(f"two ops are called {cls.kind}: {found[cls.kind]} and {cls}")
    return found


def _concrete(cls: type[Op]) -> Iterator[type[Op]]:
    for sub in cls.__subclasses__():
        if "kind" in vars(sub):
            yield sub
        yield from _concrete(sub)
