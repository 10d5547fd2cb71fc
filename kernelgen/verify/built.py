"""Owns reading a build folder: its kernels with their sub-graphs, cache groups and libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kernelgen.compile.isa import machine_isas
from kernelgen.core.errors import UsageError
from kernelgen.core.jsonio import load_file
from kernelgen.ir.codec import block_from_json
from kernelgen.ir.graph import Block, Role, Table
from kernelgen.ops.registry import op_kinds

_BUILD_AGAIN = "build the model again"


@dataclass(frozen=True)
class Operand:
    """One operand of a kernel; `shape` holds numbers, T (token rows) and B (logit rows)."""

    role: str
    """`input`, `weight`, `output`, `cache`, `step` or `scratch`"""
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


@dataclass(frozen=True)
class BuiltKernel:
    """One kernel of a build."""

    name: str
    phases: tuple[str, ...]
    operands: tuple[Operand, ...]
    block: Block
    layers: tuple[int, ...]
    """layers whose cache its launches are given"""

    @property
    def has_cache(self) -> bool:
        """Whether it is given a layer's cache."""
        return any(o.role == "cache" for o in self.operands)

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
    kernels: tuple[BuiltKernel, ...]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The cache groups in the order of the manifest."""
        found = self.manifest["cache"]["groups"]
        return tuple(Group(g["name"], g["window"], tuple(g["layers"])) for g in found)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers that keep a cache; the library numbers them in this order."""
        return tuple(sorted(layer for g in self.groups for layer in g.layers))

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        """Rotary tables by the name of their weight."""
        found = {}
        for weight in self.manifest["weights"]:
            if weight["source"] != "checkpoint":
                rope = weight["source"]["rope"]
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

    def largest(self, phase: str) -> int:
        """Size of the largest plan of a phase."""
        return max(int(p["size"]) for p in self.manifest["plans"] if p["phase"] == phase)

    def workspace_bytes(self, phase: str, tokens: int) -> int:
        """What the smallest plan that takes the step has for all buffers: enough for scratch."""
        plans = [p for p in self.manifest["plans"] if p["phase"] == phase]
        fit = [p for p in plans if p["size"] >= tokens]
        return int(min(fit, key=lambda p: int(p["size"]))["workspace_bytes"])

    def libraries(self) -> Mapping[str, Path]:
        """Instruction set → library, those that this machine can run, best first."""
        cpuinfo = Path("/proc/cpuinfo")
        here = machine_isas(cpuinfo.read_text()) if cpuinfo.exists() else ()
        return {
            lib["isa"]: self.folder / lib["path"]
            for target in self.manifest["targets"]
            for lib in target["libraries"]
            if lib["isa"] in here
        }


def read_build(folder: Path) -> Built:
    """The build in `folder`; `UsageError` where a file is missing or does not hold what it must."""
    manifest = load_file(folder / "manifest.json")
    kernels = load_file(folder / "kernels.json")
    if not isinstance(manifest, dict) or not isinstance(kernels, list):
        raise UsageError("not a build", where=str(folder), hint=_BUILD_AGAIN)
    try:
        layers = _layers(folder)
        # Checked here is the CPU's program: its sections stand beside those of the model.
        targets: Any = manifest["targets"]
        cpu = {t["target"]: t for t in targets}.get("cpu")
        found = tuple(_kernel(data, layers) for data in kernels)
    except (KeyError, TypeError, AttributeError) as error:
        where = str(folder / "kernels.json")
        raise UsageError(f"lacks {error}", where=where, hint=_BUILD_AGAIN) from error
    if cpu is None:
        raise UsageError("was not built for the CPU", where=str(folder), hint=_BUILD_AGAIN)
    return Built(folder, {**manifest, **cpu}, found)


def _kernel(data: Any, layers: Mapping[str, Sequence[int]]) -> BuiltKernel:
    return BuiltKernel(
        name=data["name"],
        phases=tuple(data["phases"]),
        operands=tuple(
            Operand(o["role"], o["name"], o["dtype"], tuple(o["shape"]), o["layout"])
            for o in data["signature"]
        ),
        block=block_from_json(data["graph"], op_kinds()),
        layers=tuple(layers.get(data["name"], ())),
    )


def _layers(folder: Path) -> dict[str, list[int]]:
    """Kernel → layers it is launched for, from the plans of the build."""
    found: dict[str, set[int]] = {}
    for path in sorted(folder.glob("plans/*.json")):
        plan = load_file(path)
        if not isinstance(plan, dict) or plan["target"] != "cpu":
            continue
        for launch in plan["kernels"]:  # type: ignore[union-attr]
            if isinstance(launch, dict) and isinstance(launch["layer"], int):
                found.setdefault(str(launch["name"]), set()).add(launch["layer"])
    return {name: sorted(layers) for name, layers in found.items()}
