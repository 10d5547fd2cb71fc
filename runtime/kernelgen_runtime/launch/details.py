"""Owns what a step's result holds beside ids: log-probabilities and kept sets, and their rows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..sample.reference import Likelihood

Ints = npt.NDArray[np.int32]

TOLD = -2
"""instead of a number of likeliest tokens: those that the slot names"""
RULES, LOGPROBS, MASK, PROMPT_LOGPROBS, GUIDED = 1, 2, 4, 8, 16
"""what a request asks beside an id, as bits"""
MAX_LOGPROBS, MASK_IDS = 20, 2048


@dataclass(frozen=True)
class Details:
    """What follows a step: whether rows are chosen by rules; for each logit row how many of the
    likeliest tokens are wanted (-1: nothing, or `TOLD`), the token (-1: the chosen one), whether
    its kept set. `guided`: the logit rows whose choice a grammar binds, in order.
    """

    refine: bool
    logprobs: Ints | None = None
    tokens: Ints | None = None
    masks: Ints | None = None
    guided: npt.NDArray[np.intp] | None = None


@dataclass(frozen=True)
class Answer:
    """Ids of the asked logit rows, and rows of `logprobs` and `masks` where they were wanted."""

    ids: Ints
    logprobs: Ints | None = None
    masks: Ints | None = None

    @property
    def tells(self) -> bool:
        """Whether there is more than ids."""
        return self.logprobs is not None or self.masks is not None


def likelihood_of(row: Ints, count: int) -> Likelihood:
    """Read a row of `logprobs` that tells of `count` tokens beside its own."""
    values = row.view(np.float32)
    ids = row[3 : 3 + count].tolist()
    likeliest = zip(ids, values[3 + MAX_LOGPROBS :][:count].tolist(), strict=True)
    return Likelihood(int(row[2]), float(values[1]), int(row[0]), tuple(likeliest))


def kept_ids(row: Ints, vocab: int) -> Ints:
    """Return the ids that a row of `masks` holds, ascending."""
    count = int(row[0])
    if count <= MASK_IDS:
        return np.sort(row[1 : 1 + count])
    bits = np.unpackbits(row[1 : 1 + -(-vocab // 32)].view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:vocab]).astype(np.int32)
