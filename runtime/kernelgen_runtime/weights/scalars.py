"""Owns weights that are a few numbers, each a tensor of its own where the checkpoint has it."""

from collections.abc import Iterator, Mapping

import torch

from ..artifact.manifest import Weight
from ..errors import WeightsError, shown
from .blocks import Read
from .checkpoint import TensorSource


def scalar_reads(weight: Weight, names: Mapping[str, object]) -> Iterator[Read | None]:
    """Yield what each number is read from, None where none of its tensors is there."""
    for choices in weight.scalars:
        name = next((name for name in choices if name in names), None)
        yield None if name is None else Read(name, 0, 1, 1)


def fill_scalars(weight: Weight, source: TensorSource, out: torch.Tensor) -> None:
    """Write the numbers; one that the checkpoint lacks is 1.

    Raises WeightsError for a tensor of several numbers, and for one that is not positive.
    """
    for i, read in enumerate(scalar_reads(weight, source.entries)):
        if read is None:
            out[i] = 1.0
            continue
        shape = source.entries[read.tensor][1]
        if any(size != 1 for size in shape):
            raise WeightsError(f"{shown(read.tensor)}: shape {list(shape)}, must be one number")
        value = source.rows(read.tensor, 0, 1, 1).float()
        if not bool((value.isfinite() & (value > 0)).all()):
            raise WeightsError(
                f"{shown(read.tensor)}: is {float(value)}; a scale must be finite and above zero"
            )
        out[i] = value.reshape(())
