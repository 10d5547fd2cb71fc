"""Owns reading what a program hands the offline interface: whatever is no prompt is one line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import RequestError, WeightsError, shown
from .sample.params import SamplingParams

_WHOLE = (int, np.integer)


def read_ids(value: object, vocab: int, what: str = "prompt", least: int = 1) -> list[int]:
    """Return token ids below `vocab` as plain numbers. Raises RequestError."""
    ids = _listed(value)
    if ids is None:
        raise RequestError(f"{what}: must be text or a list of token ids, is {shown(value)}")
    if len(ids) < least:
        raise RequestError(f"{what}: is empty")
    for one in ids:
        if not isinstance(one, _WHOLE) or isinstance(one, bool) or not 0 <= one < vocab:
            raise RequestError(f"{what}: {shown(one)} is not a token id from 0 to {vocab - 1}")
    return [int(one) for one in ids]


def read_prompts(value: object) -> list[Any]:
    """Return prompts one by one, each unread. Raises RequestError."""
    prompts = _listed(value)
    if prompts is None or any(isinstance(one, _WHOLE) for one in prompts):
        raise RequestError(
            "prompts: must be a list of prompts, each text or a list of token ids, is "
            f"{shown(value)}; put a single prompt into a list"
        )
    return prompts


def read_params(value: object) -> SamplingParams:
    """Return sampling parameters. Raises RequestError for anything else."""
    if not isinstance(value, SamplingParams):
        raise RequestError(f"params: must be SamplingParams(...), is {shown(value)}")
    return value


def read_each(value: object, count: int, what: str) -> list[Any]:
    """Return one of `what` for each of `count` prompts: a list has as many, all else is for each.

    Raises RequestError.
    """
    values = _listed(value)
    if values is None:
        return [value] * count
    if len(values) != count:
        raise RequestError(f"{count} prompts and {len(values)} {what}")
    return values


def read_weights(value: object) -> str | Path:
    """Return the folder of a checkpoint, or the word for made-up weights. Raises WeightsError."""
    if not isinstance(value, str | Path):
        raise WeightsError(f"weights: must be a folder or random[:SEED], is {shown(value)}")
    return value


def _listed(value: object) -> list[Any] | None:
    """Return the elements of what has an order, None where it has none; a text is no list."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        return None
    return list(value)
