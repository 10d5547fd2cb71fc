"""Owns reading a build folder: its kernels with their sub-graphs, cache groups and libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kernelgen.compile.isa import machine_isas
from kernelgen.core.errors import UsageError
from kernelgen.core.jsonio import dumps, load_file
from kernelgen.ir.codec import block_from_json
from kernelgen.ir.graph import Block, Role, Table
from kernelgen.ir.op import Trait
from kernelgen.ops.registry import op_kinds

CPU = "cpu"
_BUILD_AGAIN = "build the model again"


@dataclass(frozen=True)
class Operand:
    """One operand of a kernel; `shape` holds numbers, T (token rows) and B (logit rows)."""

    role: str
    """`input`, `weight`, `output`, `cache`, `step`, `scratch` or `counters`"""
    name: str
    dtype: str
    shape: tuple[int | str, ...]
    layout: str

    def sizes(self, tokens: int, logit_rows: int) -> tuple[int, ...]:
        """The shape of one step."""
        letters = {"T": tokens, "B": logit_rows}
        return tuple(letters[d] if isinstance(d, str) else d for d in self.shape)

    @property
    def leading(self) -> str:
        """`T`, `B`, or nothing for a parameter."""
        return self.shape[0] if self.shape and isinstance(self.shape[0], str) else ""


@dataclass(frozen=True)
class Group:
    """One cache group; `layers` in the order of their places in a page."""

    name: str
    window: int | None
    layers: tuple[int, ...]
    per_request: bool = False


@dataclass(frozen=True)
class Use:
    """How plans use a kernel: `number` of the plan, and the rows that its buffers have.

    Of plans with the same tile for a kernel the largest one stands for all.
    """

    number: int
    phase: str
    size: int
    logit_rows: int
    workspace_bytes: int


@dataclass(frozen=True)
class BuiltKernel:
    """One kernel of a build."""

    name: str
    operands: tuple[Operand, ...]
    block: Block
    layers: tuple[int, ...]
    """layers whose cache its launches are given"""
    uses: tuple[Use, ...]

    @property
    def has_cache(self) -> bool:
        """Whether it is given a layer's cache."""
        return any(o.role == "cache" for o in self.operands)

    @property
    def stands_alone(self) -> bool:
        """Whether a checker can make what it reads: what it is given of a layer is keys and values,
        or nothing."""
        if any(node.op.has(Trait.SCAN | Trait.LATENT) for node in self.block.nodes):
            return False
        return all(len(v.type.shape) == 2 for v in self.block.values if v.role is Role.STATE)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:
        """The buffers it has to fill."""
        return tuple(o for o in self.operands if o.role == "output")

    @property
    def by_logit_rows(self) -> bool:
        """Whether its results belong to logit rows, not token rows."""
        return any(o.leading == "B" for o in self.outputs)

    @cached_property
    def written_state(self) -> str | None:
        """The state value it leaves behind, or None for a kernel that stores no keys."""
        for value in self.block.values:
            if value.role is Role.STATE and value.name in self.block.producer:
                return value.name
        return None


@dataclass(frozen=True)
class Built:
    """A build folder as a checker sees it."""

    folder: Path
    manifest: Mapping[str, Any]
    """of the model, and of the target that is checked"""
    kernels: tuple[BuiltKernel, ...]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The cache groups in the order of the manifest."""
        found = self.manifest["cache"]["groups"]
        return tuple(
            Group(g["name"], g["window"], tuple(g["layers"]), g["kind"] == "state") for g in found
        )

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers that keep a cache; the library numbers them in this order."""
        return tuple(sorted(layer for g in self.groups for layer in g.layers))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Kernels that only whole steps check."""
        return tuple(k.name for k in self.kernels if not k.stands_alone)

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        """Rotary tables by the name of their weight."""
        found = {}
        for weight in self.manifest["weights"]:
            source = weight["source"]
            if source != "checkpoint" and "rope" in source:
                rope = source["rope"]
                args = (tuple(rope["inv_freq"]), rope["scale"], rope["positions"])
                found[weight["name"]] = Table(weight["name"], *args)
        return found

    @property
    def parameters(self) -> int:
        """Numbers in the checkpoint."""
        total = 0
        for tensor in self.manifest["tensors"]:
            count = 1
            for dim in tensor["shape"]:
                count *= dim
            total += count
        return total

    @cached_property
    def plans(self) -> tuple[Use, ...]:
        """Every plan as a use."""
        return tuple(
            Use(p["id"], p["phase"], p["size"], p["logit_rows"], p["workspace_bytes"])
            for p in self.manifest["plans"]
        )

    def plan(self, phase: str, size: int) -> Use:
        """The smallest plan of a phase that takes `size` requests or tokens."""
        fit = [p for p in self.plans if p.phase == phase and p.size >= size]
        return min(fit, key=lambda p: p.size)

    @property
    def on_gpu(self) -> bool:
        """Whether it is for a GPU."""
        return str(self.manifest["target"]) != CPU

    def libraries(self) -> Mapping[str, Path]:
        """Instruction set → library, those that this machine can run, best first."""
        found = {lib["isa"]: self.folder / lib["path"] for lib in self.manifest["libraries"]}
        if self.on_gpu:
            return found
        cpuinfo = Path("/proc/cpuinfo")
        here = machine_isas(cpuinfo.read_text()) if cpuinfo.exists() else ()
        return {isa: path for isa, path in found.items() if isa in here}


def read_build(folder: Path, target: str = CPU) -> Built:
    """The build in `folder` for a target; `sm_90` is the first one of that SM.

    `UsageError` where a file is missing or does not hold what it must.
    """
    manifest = load_file(folder / "manifest.json")
    if not isinstance(manifest, dict):
        raise UsageError("not a build", where=str(folder), hint=_BUILD_AGAIN)
    try:
        section = _section(manifest, target, folder)
        name = str(section["target"])
        below = "" if name == CPU else f"{name.partition(':')[0]}/"
        path = folder / f"{below}kernels.json"
        kernels = load_file(path)
        if not isinstance(kernels, list):
            raise UsageError("not a build", where=str(path), hint=_BUILD_AGAIN)
        uses = _uses(folder, section)
        found = tuple(_kernel(data, uses) for data in kernels)
    except (KeyError, TypeError, AttributeError) as error:
        where = str(folder / "kernels.json")
        raise UsageError(f"lacks {error}", where=where, hint=_BUILD_AGAIN) from error
    return Built(folder, {**manifest, **section}, found)


def _section(manifest: Mapping[str, Any], target: str, folder: Path) -> Mapping[str, Any]:
    """What the manifest says of a target."""
    for section in manifest["targets"]:
        if target in (section["target"], section["target"].partition(":")[0]):
            found: Mapping[str, Any] = section
            return found
    what = "the CPU" if target == CPU else target
    known = [str(section["target"]) for section in manifest["targets"]]
    hint = f"`--target {known[0].partition(':')[0]}` takes it as it is" if known else _BUILD_AGAIN
    text = f"was not built for {what}"
    raise UsageError(text, where=str(folder), allowed=", ".join(known), hint=hint)


@dataclass
class _Uses:
    """What plans say of one kernel: its layers, and uses by phase and tile."""

    layers: set[int] = field(default_factory=set)
    by_tile: dict[tuple[str, str], Use] = field(default_factory=dict)


def _uses(folder: Path, section: Mapping[str, Any]) -> dict[str, _Uses]:
    """Kernel → how the plans of a target use it. On the CPU a tile is none of a plan's."""
    found: dict[str, _Uses] = {}
    known = {(p["phase"], p["size"]): p for p in section["plans"]}
    on_cpu = section["target"] == CPU
    for path in sorted(folder.glob("plans/*.json")):
        plan: Any = load_file(path)
        if plan["target"] != section["target"]:
            continue
        phase, size = plan["phase"], plan["size"]
        own = known[phase, size]
        number = int(phase == "decode") if on_cpu else own["id"]
        use = Use(number, phase, size, own["logit_rows"], own["workspace_bytes"])
        for launch in plan["kernels"]:
            of = found.setdefault(launch["name"], _Uses())
            tile = "" if on_cpu else dumps(launch["choice"])
            if launch["layer"] is not None:
                of.layers.add(launch["layer"])
            before = of.by_tile.get((phase, tile))
            if before is None or before.size < size:
                of.by_tile[phase, tile] = use
    return found


def _kernel(data: Any, uses: Mapping[str, _Uses]) -> BuiltKernel:
    of = uses.get(data["name"], _Uses())
    return BuiltKernel(
        name=data["name"],
        operands=tuple(
            Operand(o["role"], o["name"], o["dtype"], tuple(o["shape"]), o["layout"])
            for o in data["signature"]
        ),
        block=block_from_json(data["graph"], op_kinds()),
        layers=tuple(sorted(of.layers)),
        uses=tuple(sorted(of.by_tile.values(), key=lambda u: (u.phase, u.size))),
    )
