"""Owns what the manifest says of packed matrices: their format, packing and tensors, as data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernelgen.formats.stored import StoredMatrix


def packed_source(matrix: StoredMatrix) -> dict[str, Any]:
    """How a runtime makes the bound bytes of a matrix: see docs/abi.md."""
    kind, packing = matrix.kind, matrix.packing
    return {
        "format": kind.name,
        "rows": matrix.n,
        "cols": matrix.k,
        "code": kind.code.name,
        "scale": {"dtype": kind.scale.name, "rows": kind.rows, "group": kind.group},
        "zero": kind.zero,
        "factor": kind.row_factor,
        "packing": None
        if packing is None
        else {
            "arrangement": packing.arrangement,
            "transposed": packing.transposed,
            "zero_bias": packing.zero_bias,
            "factor_divides": packing.factor_divides,
        },
        "tensors": matrix.names,
        **({"stack": matrix.stack} if matrix.stack > 1 else {}),
        **({"each": True} if matrix.each else {}),
        **({"take": list(matrix.take)} if matrix.take is not None else {}),
    }


def packed_tensors(matrices: Iterable[StoredMatrix]) -> list[dict[str, Any]]:
    """What the checkpoint must (or, `optional`, may) hold for them; what two share is said once."""
    tensors = {tensor.name: tensor for matrix in matrices for tensor in matrix.files}
    return [
        {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "dtypes": list(tensor.dtypes),
            **({"optional": True} if tensor.optional else {}),
        }
        for tensor in tensors.values()
    ]
