"""Owns the digest of a kernel's generated code, by which a measured row knows what it measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.step_args import args_layout
from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.codegen.triton.kernels import StepLayout
from kernelgen.ir.graph import Block, Node, Role
from kernelgen.ir.op import Trait
from kernelgen.planner.caches import CacheGroup, CacheSchema
from kernelgen.planner.family import Match
from kernelgen.planner.network import Network, Region
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel
from kernelgen.planner.planner import MAX_ROWS

# Which digest makes a row stale? One of whole template files and of the modules that print into
# them would condemn every row of a family whenever anybody tidies a printer, and one of the
# family's template alone would miss printers and included files. So the digest is of the very
# code: the variant is rendered with the row's choice and what the compiler is told besides, after
# everything that belongs to a model and not to the variant (names, comments, the words of the
# step's arguments, the size of a page) has been replaced by something fixed. It changes exactly
# when the compiler would see other code. One rendering takes a few milliseconds and is
# remembered, and only variants that have a row are rendered.

_NAME = "kernel"
_OWN_NAMES = (Role.STEP, Role.TABLE)
"""values that code generation knows by name; they are the same in every model"""


def source_digest(kernel: Kernel, choice: Mapping[str, int]) -> str:
    """64 hexadecimal digits of the generated code of one planned kernel with one tile.

    The sweep stores it, the look-up compares it. Equal for every model that has the variant.
    """
    match = kernel.match
    extras = tuple(name for name in kernel.signature if name in (SCRATCH, COUNTERS))
    place = (match.family.name, match.phase, match.variant, extras, tuple(choice.items()))
    if place not in _KNOWN:
        _KNOWN[place] = _digest(match, extras, choice)
    return _KNOWN[place]


_KNOWN: dict[tuple[object, ...], str] = {}
_NEUTRAL: dict[tuple[str, str, str], Match] = {}


def _digest(match: Match, extras: tuple[str, ...], choice: Mapping[str, int]) -> str:
    named = (match.family.name, match.phase, match.variant)
    neutral = _NEUTRAL[named] if named in _NEUTRAL else _NEUTRAL.setdefault(named, _neutral(match))
    region = neutral.region
    outputs = [o for o in region.outputs if region.value(o).role is not Role.STATE]
    signature = (*region.inputs, *outputs, *extras)
    layout = _layout(bool(region.with_trait(Trait.SCAN)))
    made = gpu_kernel(Kernel(_NAME, neutral, signature), choice, layout)
    content = [line for launch in made.passes for line in _told(launch.unit)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _told(unit: TritonUnit) -> Iterator[str]:
    """Everything that decides the compiled code of one launch."""
    yield from _code(unit.text.splitlines())
    yield json.dumps(
        {
            "signature": [(a.type, a.divisible) for a in unit.signature],
            "constants": unit.constants,
            "options": unit.options,
            "warps": unit.num_warps,
            "stages": unit.num_stages,
            "pdl": unit.pdl,
        }
    )


def _code(lines: Iterable[str]) -> Iterator[str]:
    """Lines without comments, documentation and blanks."""
    quoted = False
    for line in lines:
        text = line.strip()
        edge = text.count('"""') == 1
        if quoted or text.startswith('"""'):
            quoted ^= edge
            continue
        code = line.split("  # ")[0].rstrip()
        if code and not text.startswith("#"):
            yield code


@cache
def _layout(has_states: bool) -> StepLayout:
    """A cache and arguments of no model in particular."""
    state_bytes = 1 << 20 if has_states else 0
    pages = CacheSchema(1 << 20, (CacheGroup("full_0", None, (0,)),), {}, state_bytes)
    return StepLayout(pages, args_layout(pages, 8192, MAX_ROWS, 1 << 15))


def _neutral(match: Match) -> Match:
    """The same match in a block whose values and ops are called by numbers in order of use."""
    region = match.region
    network = region.network
    block = network.block
    names: dict[str, str] = {}
    used = (name for node in region.nodes for name in (*node.inputs, *node.outputs))
    rest = (value.name for value in block.values)
    for name in dict.fromkeys((*used, *rest)):
        own = block.value[name].role in _OWN_NAMES
        names[name] = name if own else f"v.{len(names)}"
    numbers = {n.name: f"op.{i}" for i, n in enumerate((*region.nodes, *block.nodes))}
    nodes = tuple(
        Node(
            numbers[n.name],
            n.op,
            tuple(names[i] for i in n.inputs),
            tuple(names[o] for o in n.outputs),
        )
        for n in block.nodes
    )
    renamed = Block(
        "block",
        tuple(replace(v, name=names[v.name]) for v in block.values),
        nodes,
        tuple((stream, names[value]) for stream, value in block.results),
    )
    found = match.family.match(Region(Network(renamed), region.mask), match.phase)
    assert isinstance(found, Match), "a family's answer does not depend on names"
    assert found.variant == match.variant
    return found
