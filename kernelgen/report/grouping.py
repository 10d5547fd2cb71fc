"""Owns folding a step's launches: layers with equal launches are shown once, with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kernelgen.report.plan_data import KernelView

_RUNS_SHOWN = 6


@dataclass(frozen=True)
class Section:
    """Launches of one layer (or of none), standing for all layers with equal ones.

    `layers` are the layers it stands for, in order; empty outside of layers.
    """

    kernels: tuple[KernelView, ...]
    layers: tuple[int, ...]

    @property
    def times(self) -> int:
        """How often these launches occur in a step."""
        return max(1, len(self.layers))

    @property
    def us(self) -> float:
        """Predicted time of all occurrences."""
        return self.times * sum(kernel.predicted_us for kernel in self.kernels)

    @property
    def title(self) -> str:
        """ "layers 0–2, 4–6 (6 ×)", "layer 3" or "once a step"."""
        if not self.layers:
            return "once a step"
        if len(self.layers) == 1:
            return f"layer {self.layers[0]}"
        shown = _runs(self.layers)
        text = ", ".join(shown[:_RUNS_SHOWN]) + (", …" if len(shown) > _RUNS_SHOWN else "")
        return f"layers {text} ({len(self.layers)} ×)"


def sections(kernels: Sequence[KernelView]) -> tuple[Section, ...]:
    """The step in order of first execution; a layer equal to an earlier one joins its section."""
    found: list[Section] = []
    place: dict[tuple[object, ...], int] = {}
    for layer, group in groupby(kernels, key=lambda kernel: kernel.layer):
        launches = tuple(group)
        if layer is None:
            found.append(Section(launches, ()))
            continue
        shape = tuple((k.name, k.ops, k.bytes, k.predicted_us, k.verdict) for k in launches)
        if shape in place:
            first = found[place[shape]]
            found[place[shape]] = replace(first, layers=(*first.layers, layer))
        else:
            place[shape] = len(found)
            found.append(Section(launches, (layer,)))
    return tuple(found)


def _runs(numbers: Sequence[int]) -> list[str]:
    """[0, 1, 2, 5] as ["0–2", "5"]."""
    groups = groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    runs = [[number for _, number in group] for _, group in groups]
    return [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
