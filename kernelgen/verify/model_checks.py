"""Owns whole models against recorded cases, run by the runtime in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelgen.core.errors import UsageError
from kernelgen.core.resources import runtime_dir
from kernelgen.verify.built import Built
from kernelgen.verify.checks import Callback, Check, Progress, faults
from kernelgen.verify.model_bounds import LogitBound, logit_bound
from kernelgen.verify.model_cases import Case, Floats, read_logits, write_prompts
from kernelgen.verify.supervisor import Child

CHUNKS = (1, 7, 16)
"""one token a step, across page edges, exactly a page"""
PREFIXES = (1, 2, 17)
"""prompts of other lengths that share a batch with the recorded ones"""
RUN_SECONDS = 1800.0


class _RunFailed(Exception):
    """The runtime did not finish; the text says how."""


@dataclass(frozen=True)
class ModelUnderTest:
    """A build with the weights it is to be run with."""

    built: Built
    weights: Path
    threads: int | None = None

    def logits(self, prompts: Path, *options: str) -> dict[str, Floats]:
        """Logits by case from one run of the runtime's `logits` command."""
        out = prompts.with_suffix(".out.npz")
        command = ["-m", "kernelgen_runtime", "logits", str(self.built.folder)]
        command += ["--weights", str(self.weights), "--cases", str(prompts), "--out", str(out)]
        if self.threads is not None:
            command += ["--threads", str(self.threads)]
        with Child([*command, *options], [runtime_dir().parent]) as child:
            for _ in child.lines(RUN_SECONDS):
                pass  # the command says nothing on stdout
            end = child.end()
        if end:
            raise _RunFailed(end)
        return read_logits(out)


def check_model(
    model: ModelUnderTest, cases: Sequence[Case], *, progress: Callback | None = None
) -> tuple[Check, ...]:
    """Logits and greedy ids of every case, then: any chunking, and a mixed batch, bit for bit."""
    manifest = model.built.manifest
    vocab = manifest["model"]["vocab"]
    for case in cases:
        if case.prefill_logits.shape[1] != vocab:
            text = f"case {case.name} was recorded for {case.prefill_logits.shape[1]} token ids"
            raise UsageError(text, where="recorded cases", allowed=f"{vocab}, as the model has")
    found: list[Check] = []

    def done(label: str, number: int) -> None:
        if progress is not None:
            progress(Progress(number, 2 + len(CHUNKS), label))

    with tempfile.TemporaryDirectory(prefix="kernelgen-verify-") as folder:
        prompts = Path(folder) / "prompts.npz"
        write_prompts(prompts, {c.key: (c.prompt_ids.tolist(), c.fed_ids.tolist()) for c in cases})
        try:
            whole = model.logits(prompts)
        except _RunFailed as error:
            return (faults("model", "ends", len(cases), 1, str(error)),)
        for case in cases:
            bound = logit_bound(case, manifest["activation_dtype"], model.built.parameters)
            found += [_logits(case, whole[case.key], bound), _ids(case, whole[case.key], bound)]
        done("recorded cases", 1)
        for number, chunk in enumerate(CHUNKS):
            found.append(_chunked(model, prompts, whole, chunk))
            done(f"chunks of {chunk}", 2 + number)
        found.append(_batched(model, Path(folder) / "batch.npz", cases, whole))
        done("mixed batch", 2 + len(CHUNKS))
    return tuple(found)


def _logits(case: Case, ours: Floats, bound: LogitBound) -> Check:
    """Every recorded logit within the bound."""
    prompt = len(case.prompt_ids)
    off = np.abs(ours[:prompt].astype(np.float64) - case.prefill_logits)
    if len(case.decode_logits):
        later = np.abs(ours[prompt:].astype(np.float64) - case.decode_logits)
        off = np.concatenate([off, later])
    wild = int((~np.isfinite(off)).sum())
    if wild:
        return faults(case.name, "logits", len(off), wild, f"{wild} logits are not finite")
    row, column = np.unravel_index(int(off.argmax()), off.shape)
    error = float(off[row, column])
    detail = f"row {row}, id {column}; bound: {bound.rule}"
    return Check(case.name, "logits", len(off), error, bound.value, error <= bound.value, detail)


def _ids(case: Case, ours: Floats, bound: LogitBound) -> Check:
    """The reference's greedy ids, wherever its margin exceeds the bound."""
    before = ours[len(case.prompt_ids) - 1 :][: len(case.fed_ids)]
    chosen = before.argmax(axis=1)
    asked = case.margins > bound.value
    wrong = np.flatnonzero(asked & (chosen != case.fed_ids))
    count = int(asked.sum())
    detail = f"equal at all {count} of {len(asked)} steps whose margin exceeds the bound"
    if len(wrong):
        step = int(wrong[0])
        detail = f"step {step}: {chosen[step]}, not {case.fed_ids[step]}"
    return Check(case.name, "greedy ids", count, float(len(wrong)), 0.0, not len(wrong), detail)


def _chunked(model: ModelUnderTest, prompts: Path, whole: dict[str, Floats], chunk: int) -> Check:
    """Prompts in pieces of at most `chunk` tokens: the bits of one piece."""
    what = f"chunks of {chunk}"
    try:
        pieces = model.logits(prompts, "--chunk", str(chunk))
    except _RunFailed as error:
        return faults("model", what, len(whole), 1, str(error))
    count = sum(_differing(pieces[key], whole[key]) for key in whole)
    return faults("model", what, len(whole), count, "logits whose bits differ from one piece")


def _batched(
    model: ModelUnderTest, path: Path, cases: Sequence[Case], whole: dict[str, Floats]
) -> Check:
    """All cases and some of their beginnings in one batch: the bits of each alone."""
    prompts = {c.key: (c.prompt_ids.tolist(), c.fed_ids.tolist()) for c in cases}
    for case in cases:
        for length in PREFIXES:
            if length < len(case.prompt_ids):
                rest = case.prompt_ids[length : length + 3].tolist()
                prompts[f"{case.key}-{length}"] = (case.prompt_ids[:length].tolist(), rest)
    write_prompts(path, prompts)
    try:
        together = model.logits(path, "--batch")
    except _RunFailed as error:
        return faults("model", "mixed batch", len(prompts), 1, str(error))
    count = 0
    for key, rows in together.items():
        count += _differing(rows, whole[key.partition("-")[0]][: len(rows)])
    detail = "logits whose bits differ from those of the case alone"
    return faults("model", "mixed batch", len(prompts), count, detail)


def _differing(a: Floats, b: Floats) -> int:
    if a.shape != b.shape:
        return max(a.size, b.size)
    return int((a.view(np.int32) != b.view(np.int32)).sum())
