"""The common form of recorded cases, `cases.npz`: what `kernelgen verify --reference` reads.

For case i = 0, 1, …:
    i/name            the case's name
    i/prompt_ids      int64 [P]
    i/prefill_logits  float32 [P, V]   after each prompt token
    i/fed_ids         int64 [N]        greedy ids, fed one at a time afterwards
    i/decode_logits   float32 [N, V]   row s: after fed_ids[s]; [0, V] where only ids were recorded
    i/margin          float32 [N]      optional: top-1 minus top-2 where fed_ids[s] was chosen
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FILE = "cases.npz"


@dataclass(frozen=True)
class Case:
    """One prompt with its recorded greedy continuation."""

    name: str
    prompt_ids: Any
    prefill_logits: Any
    fed_ids: Any
    decode_logits: Any
    margin: Any = None

    def check(self) -> None:
        """The shapes fit, and every fed id is the argmax of the row before it."""
        prompt, fed, decoded = len(self.prompt_ids), len(self.fed_ids), len(self.decode_logits)
        assert self.prefill_logits.shape[0] == prompt, self.name
        assert decoded in (0, fed), self.name
        rows = [self.prefill_logits[-1], *self.decode_logits]
        for step, row in enumerate(rows[:fed]):
            assert int(row.argmax()) == int(self.fed_ids[step]), f"{self.name}: step {step}"


def write_cases(folder: Path, cases: Sequence[Case]) -> Path:
    """Writes `folder/cases.npz`."""
    arrays: dict[str, Any] = {}
    for i, case in enumerate(cases):
        case.check()
        arrays |= {
            f"{i}/name": np.array(case.name),
            f"{i}/prompt_ids": np.asarray(case.prompt_ids, np.int64),
            f"{i}/prefill_logits": np.asarray(case.prefill_logits, np.float32),
            f"{i}/fed_ids": np.asarray(case.fed_ids, np.int64),
            f"{i}/decode_logits": np.asarray(case.decode_logits, np.float32),
        }
        if case.margin is not None:
            arrays[f"{i}/margin"] = np.asarray(case.margin, np.float32)
    np.savez_compressed(folder / FILE, **arrays)
    return folder / FILE


def read_cases(folder: Path) -> list[Case]:
    """The cases of a folder, in order."""
    data = np.load(folder / FILE)
    count = len({key.split("/")[0] for key in data.files})
    fields = ("prompt_ids", "prefill_logits", "fed_ids", "decode_logits")
    return [
        Case(
            str(data[f"{i}/name"]),
            *(data[f"{i}/{field}"] for field in fields),
            margin=data[f"{i}/margin"] if f"{i}/margin" in data.files else None,
        )
        for i in range(count)
    ]
