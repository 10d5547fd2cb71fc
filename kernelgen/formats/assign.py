"""Owns the decision for every matrix: as the checkpoint holds it, quantised at load, or plain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kernelgen.core.errors import UnsupportedError, UsageError
from kernelgen.formats.announcement import Announcement
from kernelgen.formats.online import Online, Products
from kernelgen.formats.stored import (
    Header,
    StoredMatrix,
    looks_quantised,
    online_matrix,
    online_part,
    stored_matrix,
)


@dataclass(frozen=True)
class Module:
    """A matrix of the checkpoint, `<name>.weight`; `product`: nothing but products read it."""

    name: str
    n: int
    k: int
    product: bool


@dataclass(frozen=True)
class Part:
    """A parameter `[N, K]` or `[E, N, K]` that lies with others in a plain tensor."""

    parameter: str
    shape: tuple[int, ...]
    take: tuple[int, int, int] | None


@dataclass(frozen=True)
class Several:
    """A plain tensor of several matrices, and whether routed experts are what multiplies them."""

    tensor: str
    parts: tuple[Part, ...]
    routed: bool


@dataclass
class Assignment:
    """Quantised matrices by module, and what a person should know of the decision. `parts`: those
    of tensors of several matrices, by parameter.
    """

    matrices: dict[str, StoredMatrix] = field(default_factory=dict)
    parts: dict[str, StoredMatrix] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def assign(
    modules: Mapping[str, Module],
    others: tuple[str, ...],
    announcement: Announcement | None,
    online: Online | None,
    header: Header | None,
    several: Mapping[str, Several] = MappingProxyType({}),
    routers: frozenset[str] = frozenset(),
) -> Assignment:
    """The format of every module. `others` are modules without a matrix (norms), `several` those
    whose tensor holds more than one, which are only quantised at load; `routers` are modules that
    stay plain unless a target names them.

    What the header shows decides, the announcement only interprets it: a matrix that is stored
    plainly is plain, and one that is packed without being announced is a `UsageError`. A matrix is
    quantised once: what the checkpoint has quantised keeps its format.
    """
    found = Assignment()
    plain_anyway = 0
    for name, module in modules.items():
        scheme = announcement.scheme(name) if announcement else None
        packed = None if header is None else looks_quantised(name, header)
        if scheme is not None and packed is not False and (module.product or packed):
            if not module.product:
                raise UnsupportedError(f"{name} is quantised, and more than products read it")
            found.matrices[name] = stored_matrix(name, module.n, module.k, scheme, header)
        elif packed:
            raise UsageError(
                f"{name} is packed in the checkpoint, but its config does not say how",
                allowed="a quantization_config that covers it",
            )
        else:
            plain_anyway += scheme is not None and module.product
    if plain_anyway:
        found.notes.append(f"{plain_anyway} matrices are announced as quantised and stored plainly")
    if online is not None:
        _ask(online, modules, _products(modules, others, several, routers), several, found)
    return found


def _products(
    modules: Mapping[str, Module],
    others: tuple[str, ...],
    several: Mapping[str, Several],
    routers: frozenset[str],
) -> Products:
    plain = [name for name, module in modules.items() if module.product]
    return Products(
        linear=(
            *(name for name in plain if name not in routers),
            *(name for name, held in several.items() if not held.routed),
        ),
        routed=tuple(name for name, held in several.items() if held.routed),
        routers=tuple(name for name in plain if name in routers),
        others=(*others, *(name for name, module in modules.items() if not module.product)),
    )


def _ask(
    online: Online,
    modules: Mapping[str, Module],
    products: Products,
    several: Mapping[str, Several],
    found: Assignment,
) -> None:
    kept = 0
    for name, kind in online.chosen(products).items():
        if name in several:
            for part in several[name].parts:
                stored = online_part(several[name].tensor, part.shape, part.take, kind)
                found.parts[part.parameter] = stored
            continue
        if name in found.matrices:
            kept += 1
            continue
        found.matrices[name] = online_matrix(name, modules[name].n, modules[name].k, kind)
    if kept:
        found.notes.append(f"{kept} matrices keep the format that the checkpoint has them in")
