"""Owns whole models against recorded cases, run by the runtime in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelgen.core.errors import UsageError
from kernelgen.core.resources import runtime_dir
from kernelgen.verify.built import Built
from kernelgen.verify.checks import Callback, Check, Progress, faults, worst
from kernelgen.verify.child import Child
from kernelgen.verify.model_bounds import LogitBound, logit_bound
from kernelgen.verify.model_cases import Case, Floats, read_logits, write_prompts

CHUNKS = (1, 7, 16)
"""one token a step, across page edges, exactly a page"""
GPU_CHUNKS = (1, 16)
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
        command += ["--device", "cuda" if self.built.on_gpu else "cpu"]
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
    """Logits and greedy ids of every case, then any chunking and a mixed batch.

    On the CPU those have the bits of one piece and of each case alone. A GPU takes other tiles for
    other sizes: there they lie within the same bound as the logits themselves, and what has to be
    equal bit for bit is a batch run from graphs and kernel by kernel.
    """
    manifest = model.built.manifest
    _check_vocabulary(cases, manifest["model"]["vocab"])
    chunks = GPU_CHUNKS if model.built.on_gpu else CHUNKS
    found: list[Check] = []

    def done(label: str, number: int) -> None:
        if progress is not None:
            progress(Progress(number, 2 + len(chunks), label))

    with tempfile.TemporaryDirectory(prefix="kernelgen-verify-") as folder:
        prompts = Path(folder) / "prompts.npz"
        write_prompts(prompts, {c.key: (c.prompt_ids.tolist(), c.fed_ids.tolist()) for c in cases})
        try:
            whole = model.logits(prompts)
        except _RunFailed as error:
            return (faults("model", "ends", len(cases), 1, str(error)),)
        bounds = {}
        for case in cases:
            bound = logit_bound(case, manifest["activation_dtype"], model.built.parameters)
            bounds[case.key] = bound.value if model.built.on_gpu else 0.0
            found += [_logits(case, whole[case.key], bound), _ids(case, whole[case.key], bound)]
        done("recorded cases", 1)
        expected = _Expected(whole, bounds)
        for number, chunk in enumerate(chunks):
            found.append(_chunked(model, prompts, expected, chunk))
            done(f"chunks of {chunk}", 2 + number)
        found += _batched(model, Path(folder) / "batch.npz", cases, expected)
        done("mixed batch", 2 + len(chunks))
    return tuple(found)


def _check_vocabulary(cases: Sequence[Case], vocab: int) -> None:
    for case in cases:
        if case.prefill_logits.shape[1] != vocab:
            text = f"case {case.name} was recorded for {case.prefill_logits.shape[1]} token ids"
            raise UsageError(text, where="recorded cases", allowed=f"{vocab}, as the model has")


@dataclass(frozen=True)
class _Expected:
    """Logits of each case by key, and how far others may be off: 0 asks for the same bits."""

    whole: Mapping[str, Floats]
    bounds: Mapping[str, float]

    def check(self, what: str, found: Mapping[str, Floats], detail: str) -> Check:
        """The worst case; a key may have a suffix, and fewer rows than the case."""
        checks = []
        for key, rows in found.items():
            base = key.partition("-")[0]
            whole, bound = self.whole[base][: len(rows)], self.bounds[base]
            if bound and rows.shape == whole.shape:
                off = float(np.abs(rows.astype(np.float64) - whole).max(initial=0.0))
                close = off <= bound  # a NaN is not
                error = off if np.isfinite(off) else float(rows.size)
                checks.append(Check("model", what, 1, error, bound, close, f"case {base}"))
            else:
                count = _differing(rows, whole)
                checks.append(faults("model", what, 1, count, f"logits {detail}"))
        return worst(checks)


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


def _chunked(model: ModelUnderTest, prompts: Path, expected: _Expected, chunk: int) -> Check:
    """Prompts in pieces of at most `chunk` tokens."""
    what = f"chunks of {chunk}"
    try:
        pieces = model.logits(prompts, "--chunk", str(chunk))
    except _RunFailed as error:
        return faults("model", what, len(expected.whole), 1, str(error))
    return expected.check(what, pieces, "whose bits differ from one piece")


def _batched(
    model: ModelUnderTest, path: Path, cases: Sequence[Case], expected: _Expected
) -> list[Check]:
    """All cases and some of their beginnings in one batch; on a GPU kernel by kernel as well."""
    prompts = {c.key: (c.prompt_ids.tolist(), c.fed_ids.tolist()) for c in cases}
    for case in cases:
        for length in PREFIXES:
            if length < len(case.prompt_ids):
                rest = case.prompt_ids[length : length + 3].tolist()
                prompts[f"{case.key}-{length}"] = (case.prompt_ids[:length].tolist(), rest)
    write_prompts(path, prompts)
    what = "mixed batch"
    try:
        together = model.logits(path, "--batch")
        found = [expected.check(what, together, "whose bits differ from those of the case alone")]
        if model.built.on_gpu:
            what = "without graphs"
            eager = model.logits(path, "--batch", "--eager")
            count = sum(_differing(eager[key], together[key]) for key in together)
            text = "logits whose bits differ from those of graphs"
            found.append(faults("model", what, len(together), count, text))
    except _RunFailed as error:
        return [faults("model", what, len(prompts), 1, str(error))]
    return found


def _differing(a: Floats, b: Floats) -> int:
    if a.shape != b.shape:
        return max(a.size, b.size)
    return int((a.view(np.int32) != b.view(np.int32)).sum())
