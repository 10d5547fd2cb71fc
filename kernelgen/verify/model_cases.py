"""Owns recorded cases: prompts, tokens fed after them, and the logits that a reference gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from kernelgen.core.errors import UsageError, quote

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """One prompt. `decode_logits` may be empty: then only ids are known after the prompt."""

    key: str
    name: str
    prompt_ids: Ints
    prefill_logits: Floats
    """`[P, vocabulary]`, after each prompt token"""
    fed_ids: Ints
    """greedy ids, fed one at a time"""
    decode_logits: Floats
    """`[N, vocabulary]`, row s after feeding id s"""
    margins: Floats
    """`[N]`: by how much the reference preferred each fed id"""
    narrow: tuple[Floats, Floats] | None = None
    """prefill and decode logits of a bfloat16 run"""
    narrow_source: str = "the reference's bfloat16 run"


def read_cases(path: Path) -> tuple[Case, ...]:
    """The cases of an `.npz` file; `UsageError` where it does not hold what it must.

    bfloat16 runs are looked for in the file and in the `reference*.npz` beside it.
    """
    arrays = _arrays(path)
    beside: dict[str, npt.NDArray[np.generic]] = {}
    for other in sorted(path.parent.glob("reference*.npz")):
        beside |= {k: v for k, v in _arrays(other, "bf16_").items() if "bf16_" in k}
    found = {k.partition("/")[0] for k in arrays if k.endswith("/prompt_ids")}
    keys = sorted(found, key=lambda key: (len(key), key))
    if not keys:
        raise UsageError("holds no recorded case", where=str(path), allowed="<case>/prompt_ids …")
    try:
        return tuple(_case(key, arrays, beside) for key in keys)
    except KeyError as error:
        raise UsageError(f"lacks {quote(error.args[0])}", where=str(path)) from None
    except (ValueError, TypeError, IndexError) as error:
        raise UsageError(f"is damaged: {quote(str(error))}", where=str(path)) from None


def write_prompts(path: Path, prompts: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> None:
    """Prompts and fed ids by case, in the form that the runtime's `logits` command reads."""
    arrays: dict[str, Ints] = {}
    for key, (prompt, fed) in prompts.items():
        arrays[f"{key}/prompt_ids"] = np.asarray(prompt, np.int64)
        arrays[f"{key}/fed_ids"] = np.asarray(fed, np.int64)
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read_logits(path: Path) -> dict[str, Floats]:
    """What the `logits` command wrote: prefill rows and, behind them, decode rows by case."""
    arrays = _arrays(path)
    keys = {k.partition("/")[0] for k in arrays}
    return {
        key: np.concatenate([arrays[f"{key}/prefill_logits"], arrays[f"{key}/decode_logits"]])
        for key in sorted(keys)
    }


def _arrays(path: Path, only: str = "") -> dict[str, npt.NDArray[np.generic]]:
    try:
        with np.load(path, allow_pickle=False) as data:
            return {key: data[key] for key in data.files if only in key}
    except FileNotFoundError:
        raise UsageError("no such file", where=str(path)) from None
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UsageError(f"not a file of arrays: {quote(str(error))}", where=str(path)) from None


def _case(
    key: str,
    arrays: Mapping[str, npt.NDArray[np.generic]],
    beside: Mapping[str, npt.NDArray[np.generic]],
) -> Case:
    name = str(arrays[f"{key}/name"]) if f"{key}/name" in arrays else key
    prompt, fed = (arrays[f"{key}/{what}_ids"].astype(np.int64) for what in ("prompt", "fed"))
    prefill, decode = (
        arrays[f"{key}/{what}_logits"].astype(np.float32) for what in ("prefill", "decode")
    )
    if prefill.shape[0] != len(prompt) or decode.shape[0] not in (0, len(fed)):
        raise ValueError(f"case {key}: logits do not fit {len(prompt)} and {len(fed)} ids")
    if prefill.shape[1:] != decode.shape[1:] or not len(prompt):
        raise ValueError(f"case {key}: logits of shapes {prefill.shape} and {decode.shape}")
    if f"{key}/margin" in arrays:
        margins = arrays[f"{key}/margin"].astype(np.float32)
    else:
        margins = _margins(np.concatenate([prefill[-1:], decode])[: len(fed)])
    narrow = None
    for source, stem in ((arrays, key), (beside, name)):
        names = [f"{stem}/bf16_{what}_logits" for what in ("prefill", "decode")]
        if narrow is None and all(n in source for n in names):
            narrow = (source[names[0]].astype(np.float32), source[names[1]].astype(np.float32))
    return Case(key, name, prompt, prefill, fed, decode, margins, narrow)


def _margins(logits: Floats) -> Floats:
    """Top one minus top two of each row."""
    if not len(logits):
        return np.zeros(0, np.float32)
    top: Floats = np.partition(logits, -2, axis=1)[:, -2:]
    return top[:, 1] - top[:, 0]
