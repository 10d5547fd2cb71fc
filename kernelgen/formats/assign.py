"""Owns the decision for every matrix: as the checkpoint holds it, quantised at load, or plain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelgen.core.errors import UnsupportedError, UsageError
from kernelgen.formats.announcement import Announcement
from kernelgen.formats.online import Online, Products
from kernelgen.formats.stored import (
    EXPERT,
    Header,
    StoredMatrix,
    looks_quantised,
    online_matrix,
    online_part,
    stored_matrix,
)
from kernelgen.formats.stored_stack import (
    online_experts,
    stack_looks_quantised,
    stored_experts,
    stored_part,
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
    """A parameter `[N, K]` or `[E, N, K]` that lies with others in one tensor."""

    parameter: str
    shape: tuple[int, ...]
    take: tuple[int, int, int] | None


@dataclass(frozen=True)
class Several:
    """A tensor of several matrices, and whether routed experts are what multiplies them."""

    tensor: str
    parts: tuple[Part, ...]
    routed: bool


@dataclass(frozen=True)
class Experts:
    """A parameter `[E, N, K]` whose matrices have tensors of their own: `name` holds `{expert}`."""

    name: str
    parameter: str
    count: int
    n: int
    k: int

    @property
    def modules(self) -> tuple[str, ...]:
        """The module of each matrix."""
        return tuple(self.name.replace(EXPERT, str(e)) for e in range(self.count))


@dataclass
class Assignment:
    """Quantised matrices by module, and what a person should know of the decision. `parts`: stacks
    and those of tensors of several matrices, by parameter.
    """

    matrices: dict[str, StoredMatrix] = field(default_factory=dict)
    parts: dict[str, StoredMatrix] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Held:
    """What a checkpoint's tensors hold: `modules` of a matrix each; `others` without one (norms);
    `several`: tensors of more than one matrix, by module; `experts`: stacks of modules; `routers`:
    modules that stay plain unless a target names them.
    """

    modules: Mapping[str, Module]
    others: tuple[str, ...] = ()
    several: Mapping[str, Several] = field(default_factory=dict)
    experts: tuple[Experts, ...] = ()
    routers: frozenset[str] = frozenset()


def assign(
    held: Held, announcement: Announcement | None, online: Online | None, header: Header | None
) -> Assignment:
    """The format of every module.

    What the header shows decides, the announcement only interprets it: a matrix that is stored
    plainly is plain, and one that is packed without being announced is a `UsageError`. A matrix is
    quantised once: what the checkpoint has quantised keeps its format.
    """
    found = Assignment()
    plain_anyway = 0
    for name, module in held.modules.items():
        scheme = announcement.scheme(name) if announcement else None
        packed = None if header is None else looks_quantised(name, header)
        if scheme is not None and packed is not False and (module.product or packed):
            if not module.product:
                raise UnsupportedError(f"{name} is quantised, and more than products read it")
            found.matrices[name] = stored_matrix(name, module.n, module.k, scheme, header)
        elif packed:
            raise _unannounced(name)
        else:
            plain_anyway += scheme is not None and module.product
    for name, several in held.several.items():
        plain_anyway += _announced_parts(name, several, announcement, header, found)
    for stack in held.experts:
        plain_anyway += _announced_experts(stack, announcement, header, found)
    if plain_anyway:
        found.notes.append(f"{plain_anyway} matrices are announced as quantised and stored plainly")
    if online is not None:
        _ask(online, held, found)
    return found


def _unannounced(name: str) -> UsageError:
    return UsageError(
        f"{name} is packed in the checkpoint, but its config does not say how",
        allowed="a quantization_config that covers it",
    )


def _announced_parts(
    name: str,
    several: Several,
    announcement: Announcement | None,
    header: Header | None,
    found: Assignment,
) -> int:
    """Matrices that are announced and plain; the others are put among the `parts`."""
    scheme = announcement.scheme(name) if announcement else None
    packed = None if header is None else stack_looks_quantised(several.tensor, header)
    if packed and scheme is None:
        raise _unannounced(name)
    if scheme is None or packed is False:
        return 0 if scheme is None else len(several.parts)
    for part in several.parts:
        stored = stored_part(several.tensor, part.shape, part.take, scheme, header)
        found.parts[part.parameter] = stored
    return 0


def _announced_experts(
    stack: Experts, announcement: Announcement | None, header: Header | None, found: Assignment
) -> int:
    """The same of a stack whose matrices have tensors of their own: all in one format, or none."""
    schemes = [announcement.scheme(m) if announcement else None for m in stack.modules]
    packed = [None if header is None else looks_quantised(m, header) for m in stack.modules]
    for module, scheme, is_packed in zip(stack.modules, schemes, packed, strict=True):
        if is_packed and scheme is None:
            raise _unannounced(module)
        if scheme != schemes[0] or is_packed != packed[0]:
            raise UnsupportedError(
                f"{module} is not stored as {stack.modules[0]} is",
                allowed="one format for all experts of a layer",
            )
    scheme = schemes[0]
    if scheme is None or packed[0] is False:
        return 0 if scheme is None else stack.count
    matrix = stored_experts(stack.name, stack.count, stack.n, stack.k, scheme, header)
    found.parts[stack.parameter] = matrix
    return 0


def _products(held: Held) -> Products:
    plain = [name for name, module in held.modules.items() if module.product]
    return Products(
        linear=(
            *(name for name in plain if name not in held.routers),
            *(name for name, several in held.several.items() if not several.routed),
        ),
        routed=(
            *(name for name, several in held.several.items() if several.routed),
            *(module for stack in held.experts for module in stack.modules),
        ),
        routers=tuple(name for name in plain if name in held.routers),
        others=(*held.others, *(n for n, module in held.modules.items() if not module.product)),
    )


def _ask(online: Online, held: Held, found: Assignment) -> None:
    chosen = online.chosen(_products(held))
    kept = 0
    for stack in held.experts:
        kinds = {chosen.pop(module, None) for module in stack.modules}
        if len(kinds) > 1:
            raise UsageError(
                f"targets tell experts of {stack.name} apart",
                where="quantization config",
                allowed="one format for all experts of a layer",
            )
        kind = kinds.pop()
        if kind is not None and stack.parameter in found.parts:
            kept += stack.count
        elif kind is not None:
            matrix = online_experts(stack.name, stack.count, stack.n, stack.k, kind)
            found.parts[stack.parameter] = matrix
    for name, kind in chosen.items():
        if name in held.several:
            several = held.several[name]
            for part in several.parts:
                if part.parameter in found.parts:
                    kept += 1
                    continue
                stored = online_part(several.tensor, part.shape, part.take, kind)
                found.parts[part.parameter] = stored
        elif name in found.matrices:
            kept += 1
        else:
            module = held.modules[name]
            found.matrices[name] = online_matrix(name, module.n, module.k, kind)
    if kept:
        found.notes.append(f"{kept} matrices keep the format that the checkpoint has them in")
