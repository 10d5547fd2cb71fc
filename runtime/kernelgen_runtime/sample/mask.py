"""Owns the sets that tokens were chosen from, many in two arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class SamplingMask:
    """Sparse rows: the ids of row i, ascending, are `ids[starts[i] : starts[i + 1]]`.

    `starts` int32 [rows + 1], `ids` int32 [starts[-1]].
    """

    starts: Ints
    ids: Ints

    @classmethod
    def of(cls, rows: Sequence[Ints]) -> "SamplingMask":
        """Return the rows put together."""
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
        ids = np.concatenate([*rows, np.zeros(0, np.int32)]).astype(np.int32)
        return cls(starts, ids)

    def row(self, i: int) -> Ints:
        """Return the ids of row i."""
        return self.ids[self.starts[i] : self.starts[i + 1]]
