"""Owns the `logits` command: recorded cases in, logits of every position out."""

import argparse
import os
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from ..artifact.open import open_artifact
from ..device.choose import choose
from ..errors import RequestError, shown
from ..llm import LLM
from ..scoring import Case

# The logits buffer: more rows mean fewer repeated steps, at 4 bytes x vocabulary each.
LOGIT_BYTES = 64 << 20


def logits(options: argparse.Namespace) -> int:
    """Score the cases of `options.cases` and write `options.out`; return the exit code."""
    cases = read_cases(Path(options.cases))
    llm = open_for_scoring(options, cases)
    batches = [cases] if options.batch else [{name: case} for name, case in cases.items()]
    arrays: dict[str, npt.NDArray[np.float32]] = {}
    for batch in batches:
        for name, score in zip(batch, llm.score(list(batch.values())), strict=True):
            arrays[f"{name}/prefill_logits"] = score.prefill_logits
            arrays[f"{name}/decode_logits"] = score.decode_logits
    write_arrays(Path(options.out), arrays)
    return 0


def open_for_scoring(options: argparse.Namespace, cases: dict[str, Case]) -> LLM:
    """Return an LLM whose sequences, slots and cache fit the cases."""
    artifact = open_artifact(options.artifact)
    choice = choose(artifact.manifests, options.device)
    rows = max(1, LOGIT_BYTES // (4 * choice.manifest.vocab))
    seqs = min(len(cases), choice.manifest.args.max_rows) if options.batch else 1
    longest = max(len(case.prompt_ids) + len(case.fed_ids) for case in cases.values())
    return LLM(
        artifact,
        options.weights,
        device=choice,
        max_num_seqs=seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len or max(1, longest),
        kv_cache_memory_bytes=options.kv_cache_memory_bytes,
        gpu_memory_utilization=options.gpu_memory_utilization,
        threads=options.threads,
        chunk_tokens=options.chunk,
        logit_rows=rows,
        graphs=not options.eager,
    )


def read_cases(path: Path) -> dict[str, Case]:
    """Read `<case>/prompt_ids` and `<case>/fed_ids` of an .npz file. Raises RequestError."""
    try:
        with np.load(path, allow_pickle=False) as data:
            names = sorted({key.split("/")[0] for key in data.files if key.endswith("/prompt_ids")})
            cases = {
                name: Case(_ids(data, f"{name}/prompt_ids"), _ids(data, f"{name}/fed_ids"))
                for name in sorted(names, key=lambda name: (len(name), name))
            }
    except (OSError, ValueError, BadZipFile, EOFError) as error:
        raise RequestError(f"{path}: not a file of cases ({shown(str(error), 160)})") from None
    if not cases:
        raise RequestError(f"{path}: holds no <case>/prompt_ids")
    return cases


def _ids(data: "np.lib.npyio.NpzFile", key: str) -> tuple[int, ...]:
    if key not in data.files:
        return ()
    array = data[key]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RequestError(f"{key}: must be a list of token ids, is {array.dtype} {array.shape}")
    return tuple(array.tolist())


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[np.float32]]) -> None:
    """Write an .npz file whole or not at all. Raises RequestError where it cannot."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        part.replace(path)
    except OSError as error:
        raise RequestError(f"{path}: cannot write it ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)
