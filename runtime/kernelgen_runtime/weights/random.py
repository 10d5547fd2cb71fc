"""Owns made-up weights of plausible size, so that speed can be measured without a checkpoint."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from ..artifact.manifest import Model, Packed, Weight, elements, packed_parts
from ..errors import WeightsError, shown

# A prime: rows of a matrix are windows of one periodic sequence and none repeats another.
POOL = 4_194_301
_WORD = "random"
CPU = torch.device("cpu")


def parse_random(text: str) -> int | None:
    """Return the seed of `random` or `random:SEED`, None for anything else. Raises WeightsError."""
    word, colon, seed = text.partition(":")
    if word != _WORD:
        return None
    if not colon:
        return 0
    if not seed.isascii() or not seed.isdigit() or len(seed) > 18:
        raise WeightsError(f"random weights: seed must be a whole number, is {shown(seed)}")
    return int(seed)


def made_up(weights: Sequence[Weight]) -> list[Weight]:
    """Return the weights, packed ones as quantised from a plain matrix of the codes' name."""
    return [w if w.packed is None else replace(w, packed=_plain(w.packed)) for w in weights]


def _plain(packed: Packed) -> Packed:
    name = packed.tensors.get("codes") or packed.tensors["weight"]
    return replace(packed, packing=None, tensors={"weight": name})


class RandomTensors:
    """A `TensorSource` on `place` whose tensors depend on seed and name only, not on the place.

    Matrices have deviation 1/√columns (a product keeps its input's size); vectors lie near 1.
    """

    def __init__(
        self,
        model: Model,
        seed: int,
        place: torch.device = CPU,
        weights: Sequence[Weight] = (),
    ) -> None:
        self._seed, self._place = seed, place
        self.entries = {spec.name: ("F32", spec.shape) for spec in model.tensors}
        for packed in (weight.packed for weight in made_up(weights)):
            for one in packed.alone if packed is not None else ():
                self.entries[one.tensors["weight"]] = ("F32", packed_parts(one)["weight"])

    @cached_property
    def _pool(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed)
        return torch.randn(POOL, generator=generator).to(self._place)

    def rows(self, name: str, first: int, count: int, cols: int) -> torch.Tensor:
        """Return rows of a tensor; see `TensorSource`."""
        shape = self.entries[name][1]
        offset = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        position, size = (offset + first * cols) % POOL, count * cols
        values = self._pool[position : position + size]
        if len(values) < size:
            values = torch.cat([values, self._pool.repeat(-(-size // POOL))])[:size]
        values = values.view(count, cols)
        if len(shape) > 1 and elements(shape) > max(shape):
            return values * (1 / math.sqrt(shape[-1]))
        return 1 + 0.1 * values
