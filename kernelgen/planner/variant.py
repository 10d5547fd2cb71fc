"""Owns the canonical text of a region: equal texts mean equal kernels, whatever the names."""

from __future__ import annotations

from kernelgen.ir.graph import Role
from kernelgen.planner.network import Region

_ROLE_LETTER = {
    Role.STREAM: "x",
    Role.TEMP: "x",
    Role.WEIGHT: "w",
    Role.TABLE: "w",
    Role.STATE: "s",
    Role.STEP: "p",
}


def variant_text(region: Region) -> str:
    """One line an op, values renumbered in order of appearance, with types, offsets and outputs."""
    names: dict[str, str] = {}
    lines = []
    for node in region.nodes:
        inputs = [_reference(region, name, names) for name in node.inputs]
        for out in node.outputs:
            names[out] = f"t{len(names)}"
        results = [
            f"{names[out]}{'!' if out in region.outputs else ''}:{region.value(out).type}"
            for out in node.outputs
        ]
        attributes = node.op.attributes()
        call = f"{node.op.kind}{'{' + attributes + '}' if attributes else ''}"
        lines.append(f"{','.join(results)}={call}({','.join(inputs)})")
    return ";".join(lines)


def _reference(region: Region, name: str, names: dict[str, str]) -> str:
    """A value as an operand: its number, with type where it comes from outside or is a view."""
    access = region.network.access[name]
    seen = access.base in names
    if not seen:
        names[access.base] = f"{_ROLE_LETTER[region.value(access.base).role]}{len(names)}"
    text = names[access.base]
    if not seen:
        text += f":{region.value(access.base).type}"
    if access.base != name:
        text += f"@{access.offset}:{region.value(name).type}"
    return text
