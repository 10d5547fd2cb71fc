"""Owns bringing `args` to a GPU: only words that differ from what it holds, in few copies."""

from collections.abc import Iterable

import numpy as np
import torch

from ..artifact.manifest import ArgsField, ArgsSchema, elements
from ..device.device import Accelerator
from .args import OF_SHAPE, ArgsWriter, Ints

# Copies closer than this are made one: 16 KiB take less time than a second copy's start.
GAP_WORDS = 4096

Span = tuple[int, int]


class DeviceArgs:
    """The `args` tensor on a GPU, and on the host what it holds.

    A whole tensor is megabytes (a block table row for the longest sequence the model allows), a
    decode step changes a few words of it: lengths, and a page number once in 16 tokens.
    """

    def __init__(self, schema: ArgsSchema, tensor: torch.Tensor, api: Accelerator) -> None:
        self.tensor = tensor
        ordered = sorted(schema.fields, key=lambda field: field.offset)
        # Each with the words of one of its entries.
        self._fields = [(field, elements(field.shape[1:])) for field in ordered]
        self._api = api
        self._held: Ints = np.zeros(schema.words, np.int32)
        self._is_known = False
        self._shape: tuple[object, ...] | None = None

    def send(self, writer: ArgsWriter) -> None:
        """Copy on the current stream what a step may read of `writer`, as far as it is new."""
        spans = merged(self._changed(writer)) if self._is_known else [(0, len(self._held))]
        # Should a copy fail, nobody knows which words arrived.
        self._is_known = False
        for start, stop in spans:
            self._api.copy(self.tensor[start:stop], writer.tensor[start:stop])
            self._held[start:stop] = writer.words[start:stop]
        self._is_known, self._shape = True, writer.shape

    def _changed(self, writer: ArgsWriter) -> list[Span]:
        """Return the spans of used words that the device holds otherwise, in order."""
        spans: list[Span] = []
        same = writer.shape is not None and writer.shape == self._shape
        for field, width in self._fields:
            if same and field.name in OF_SHAPE:
                continue
            used = writer.used.get(field.name, (0,))
            if len(used) == 2:
                spans += self._changed_rows(writer.words, field, *used)
            else:
                spans += self._differing(writer.words, field.offset, used[0] * width)
        return spans

    def _changed_rows(self, words: Ints, field: ArgsField, rows: int, cols: int) -> list[Span]:
        """Return the spans of a block table that hold what differs, the gaps between them wide."""
        width = field.shape[1]
        old, new = (
            whole[field.offset : field.offset + rows * width].reshape(rows, width)[:, :cols]
            for whole in (self._held, words)
        )
        found = (old != new).ravel().nonzero()[0]  # a third of what rows and columns cost
        if not len(found):
            return []
        places = field.offset + found // cols * width + found % cols
        breaks = (places[1:] - places[:-1] >= GAP_WORDS).nonzero()[0]
        if not len(breaks):  # the usual case
            return [(int(places[0]), int(places[-1]) + 1)]
        starts = places[[0, *(breaks + 1)]].tolist()
        return list(zip(starts, (places[[*breaks, -1]] + 1).tolist(), strict=True))

    def _differing(self, words: Ints, start: int, count: int) -> list[Span]:
        """Return the span from the first to the last of `count` words that differ, if any does."""
        new, old = words[start : start + count], self._held[start : start + count]
        if new.tobytes() == old.tobytes():  # the usual case, and the cheapest way to see it
            return []
        places = (new != old).nonzero()[0]
        return [(start + int(places[0]), start + int(places[-1]) + 1)]


def merged(spans: Iterable[Span], gap: int = GAP_WORDS) -> list[Span]:
    """Return ordered `spans` with those less than `gap` words apart made one."""
    found: list[Span] = []
    for start, stop in spans:
        if found and start - found[-1][1] < gap:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found
