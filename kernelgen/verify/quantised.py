"""Owns the quantised matrices of a build: what its manifest says of them, and their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelgen.core.errors import UsageError
from kernelgen.formats import WeightFormat, weight_format
from kernelgen.formats.format import WHOLE
from kernelgen.formats.packing import Packing
from kernelgen.formats.reference import dequantise, quantise
from kernelgen.formats.unpack import unpack


@dataclass(frozen=True)
class PackedMatrix:
    """One matrix `[n, k]`, or a `stack` of them; `packing` None: quantised from a plain tensor at
    load. Rows lie among others where there is a `take`; `each`: every matrix has its own tensors,
    whose names hold `{expert}`."""

    kind: WeightFormat
    packing: Packing | None
    n: int
    k: int
    tensors: Mapping[str, str]
    """part → tensor of the checkpoint"""
    stack: int = 1
    take: tuple[int, int, int] | None = None
    each: bool = False

    @property
    def alone(self) -> list[PackedMatrix]:
        """The matrices that have tensors of their own."""
        if not self.each:
            return [self]
        return [
            replace(self, stack=1, each=False, tensors={
                part: name.replace("{expert}", str(e)) for part, name in self.tensors.items()
            })
            for e in range(self.stack)
        ]  # fmt: skip


def packed_matrices(manifest: Mapping[str, Any]) -> dict[str, PackedMatrix]:
    """Parameter → matrix, of the target's weights."""
    found = {}
    for weight in manifest["weights"]:
        source = weight["source"]
        if isinstance(source, dict) and "packed" in source:
            data, how = source["packed"], source["packed"]["packing"]
            packing = None if how is None else Packing(name="", **how)
            kind = weight_format(data["format"])
            take = tuple(data["take"]) if "take" in data else None
            found[weight["name"]] = PackedMatrix(
                kind,
                packing,
                data["rows"],
                data["cols"],
                data["tensors"],
                data.get("stack", 1),
                take,
                data.get("each", False),
            )
    return found


def load_matrices(folder: Path, matrices: Mapping[str, PackedMatrix]) -> dict[str, Any]:
    """Parameter → what its parts stand for, float32 tensors rounded once.

    `UsageError` names a tensor that is missing, and scales that are none.
    """
    import torch

    alone = {parameter: matrix.alone for parameter, matrix in matrices.items()}
    wanted = {name for ones in alone.values() for one in ones for name in one.tensors.values()}
    stored = _read(folder, wanted)
    found = {}
    for parameter, matrix in matrices.items():
        made = [_loaded(one, stored, folder) for one in alone[parameter]]
        found[parameter] = torch.stack(made) if matrix.each else made[0]
    return found


def _loaded(matrix: PackedMatrix, stored: Mapping[str, Any], folder: Path) -> Any:
    import torch

    parts = {p: stored[name] for p, name in matrix.tensors.items() if name in stored}
    missing = [matrix.tensors[p] for p in matrix.tensors if p not in parts and p != "order"]
    if missing:
        raise UsageError(f"tensor {missing[0]} is missing", where=str(folder))
    if matrix.packing is None:
        return _quantised(matrix, parts["weight"])
    arrays = {part: _array(tensor) for part, tensor in parts.items()}
    _widen(matrix.kind, arrays, parts)
    made = []
    for number in range(matrix.stack):
        mine = arrays
        if matrix.stack > 1 or matrix.take is not None:
            mine = {part: _of_matrix(matrix, part, a, number) for part, a in arrays.items()}
        held = unpack(matrix.kind, matrix.packing, mine, matrix.n, matrix.k)
        made.append(torch.from_numpy(dequantise(matrix.kind, held)).float())
    return torch.stack(made) if parts["codes"].ndim > 2 else made[0]


def _of_matrix(matrix: PackedMatrix, part: str, array: Any, number: int) -> Any:
    """What a part of a tensor of several matrices has of one of them."""
    one = array.reshape(matrix.stack, -1)[number]
    rows = matrix.take[2] if matrix.take is not None else matrix.n
    first = matrix.take[0] if matrix.take is not None else 0
    each = 1 if part == "codes" else matrix.kind.rows
    if part == "factor" or each == WHOLE:
        return one
    lines = one.reshape(-(-rows // each), -1)
    return lines[first // each : -(-(first + matrix.n) // each)]


def _quantised(matrix: PackedMatrix, tensor: Any) -> Any:
    """A plain tensor's matrices once they are quantised, each by itself."""
    import torch

    first, count, period = matrix.take or (0, matrix.n, matrix.n)
    runs = tensor.reshape(-1, period, matrix.k)[:, first : first + count]
    kind = matrix.kind
    made = [
        torch.from_numpy(dequantise(kind, quantise(kind, one.float().numpy()))).float()
        for one in runs.reshape(matrix.stack, matrix.n, matrix.k)
    ]
    return torch.stack(made) if tensor.ndim == 3 else made[0]


def cache_scales(manifest: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Parameter → for each of its numbers the tensors that may hold it: scales of an fp8 cache."""
    return {
        w["name"]: w["source"]["scalars"]
        for w in manifest["weights"]
        if isinstance(w["source"], dict) and "scalars" in w["source"]
    }


def load_scales(folder: Path, scales: Mapping[str, list[list[str]]]) -> dict[str, Any]:
    """Parameter → its numbers, 1 where the checkpoint has none."""
    import torch

    wanted = {name for numbers in scales.values() for names in numbers for name in names}
    stored = _read(folder, wanted)

    def number(names: list[str]) -> float:
        return next((float(stored[name]) for name in names if name in stored), 1.0)

    return {p: torch.tensor([number(n) for n in numbers]) for p, numbers in scales.items()}


def _widen(kind: WeightFormat, arrays: dict[str, Any], parts: Mapping[str, Any]) -> None:
    """Float32 scales may be stored in a narrower type."""
    if kind.scale.name == "float32":
        arrays["scale"] = parts["scale"].float().numpy()


def _array(tensor: Any) -> Any:
    """NumPy's view: 8-bit floats as uint8, bfloat16 as uint16."""
    import torch

    if tensor.element_size() == 1 and tensor.is_floating_point():
        return tensor.view(torch.uint8).numpy()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()


def _read(folder: Path, wanted: set[str]) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in set(file.keys()) & wanted:
                    found[name] = file.get_tensor(name)
        except SafetensorError as error:
            raise UsageError(f"is damaged: {error}", where=str(path)) from error
    return found
