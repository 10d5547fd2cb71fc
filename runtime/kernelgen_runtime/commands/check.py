"""Owns the `check` command: what a library makes of logits, beside the law in NumPy."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..artifact.open import open_artifact
from ..device.choose import choose
from ..errors import ArtifactError
from ..llm import LLM
from ..memory.groups import peak_pages
from ..sample.params import SamplingParams
from ..sample.reference import Likelihood, Rules, edited, kept, likelihood, sample
from ..sample.watermark import Watermark
from ..schedule.request import Request

TOKENS = 6
LOGPROB_ERROR = 1e-4
"""absolute: a sum of a vocabulary of exponentials in float32, and its logarithm"""
MARK = Watermark(0x1234_5678_9ABC_DEF0, 2)

Row = npt.NDArray[np.float32]


@dataclass
class Tally:
    """Comparisons of one kind, those that failed, and the first of them."""

    cases: int = 0
    wrong: int = 0
    error: float = 0.0
    first: str = ""

    def note(self, good: bool, error: float = 0.0, detail: str = "") -> None:
        """Count one comparison."""
        self.cases += 1
        self.error = max(self.error, error)
        if not good:
            self.first = self.first or detail
            self.wrong += 1


def check(options: argparse.Namespace) -> int:
    """Print a JSON line for each kind of result; 0 where all agree, 1 else.

    Raises ArtifactError for an artifact without rules.
    """
    artifact = open_artifact(options.artifact)
    choice = choose(artifact.manifests, options.device)
    if choice.manifest.rules is None:
        raise ArtifactError(f"{options.artifact}: has no rules to check; build it again")
    seqs, longest = len(laws(choice.manifest.vocab)), min(64, choice.manifest.max_sequence_tokens)
    cache = choice.manifest.cache
    pages = 1 + seqs * peak_pages(cache.groups, longest, longest)
    llm = LLM(
        artifact,
        options.weights,
        device=choice,
        max_num_seqs=seqs,
        max_model_len=longest,
        # No more than it needs: others may be at work on the same device.
        kv_cache_memory_bytes=options.kv_cache_memory_bytes or pages * cache.page_bytes,
        threads=options.threads,
        graphs=not options.eager,
        watermark=MARK,
    )
    tallies = compared(llm)
    for what, tally in tallies.items():
        print(json.dumps({"what": what, **vars(tally)}))
    return int(any(tally.wrong for tally in tallies.values()))


def laws(vocab: int) -> list[SamplingParams]:
    """Return parameters that bring every rule into play, alone and together."""
    few = tuple(range(0, vocab, max(1, vocab // 50)))
    penalties: dict[str, Any] = {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.7,
        "presence_penalty": -0.4,
    }
    told: dict[str, Any] = {"logprobs": 4, "return_sampling_mask": True}
    plain: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "watermarking": False}
    return [
        SamplingParams(**plain, temperature=0.0, **penalties),
        SamplingParams(**plain, temperature=0.0, logit_bias={1: 50.0, 2: -50.0}, logprobs=2),
        SamplingParams(**plain, temperature=1.5, seed=5, top_k=9, allowed_token_ids=few, **told),
        SamplingParams(**plain, temperature=1.0, seed=6, logprob_token_ids=(0, 3), **penalties),
        SamplingParams(**plain, temperature=0.9, seed=7, top_p=0.8, bad_word_ids=((3,), (1, 2))),
        SamplingParams(**plain, temperature=1.0, seed=8, top_k=50, top_p=0.9, **penalties, **told),
        SamplingParams(**plain, temperature=1.2, seed=9, top_k=4000, min_p=1e-3, **told),
        SamplingParams(**plain, temperature=0.7, seed=2, min_tokens=4, stop_token_ids=(0, 1)),
        SamplingParams(**plain | {"watermarking": True}, temperature=1.0, seed=1),
        SamplingParams(**plain | {"watermarking": True}, temperature=0.8, seed=3, top_k=20, **told),
    ]


def compared(llm: LLM) -> dict[str, Tally]:
    """Run all laws beside each other and compare every choice, with the logits of its own step."""
    tallies = {what: Tally() for what in ("refine", "keep_masks", "logprobs")}
    vocab = llm.manifest.vocab
    for i, params in enumerate(laws(vocab)):
        prompt = [(7919 * i + 31 * j + 5) % vocab for j in range(2 + 3 * i)]
        llm.stream(prompt, params).begin()
    for request, token, logits in _choices(llm):
        rules = Rules(
            request.params,
            request.tokens[: request.prompt_tokens],
            list(request.output_ids),
            tuple(request.stop_ids),
            request.mark,
        )
        _compare(tallies, request, rules, token, logits)
    return tallies


def _choices(llm: LLM) -> Iterator[tuple[Request, int, Row]]:
    """Yield each choice before its request has it: request, token, raw logits."""
    scheduler, program = llm.engine.scheduler, llm.program
    while (step := scheduler.schedule()) is not None:
        flight = program.launch(step, logits=True)
        ids = program.wait(flight)
        rows = program.logits(len(flight.asking)).copy()
        for i, row in enumerate(flight.asking.tolist()):
            yield step.requests[row], int(ids[row]), rows[i]
        scheduler.settle(step, ids)


def _compare(
    tallies: dict[str, Tally], request: Request, rules: Rules, token: int, logits: Row
) -> None:
    params = request.params
    where = f"request {request.id}, token {len(request.output_ids)}"
    law = sample(
        logits,
        len(request.tokens),
        float(np.float32(params.temperature)),
        params.top_k,
        params.top_p,
        request.seed,
        params.min_p,
        rules,
    )
    tallies["refine"].note(law == token, detail=f"{where}: {token}, not {law}")
    if params.return_sampling_mask:
        cut = (params.temperature, params.top_k, params.top_p, params.min_p)
        meant = np.flatnonzero(np.isfinite(kept(edited(logits, rules), *cut)))
        good = request.masks[-1].tolist() == meant.tolist()
        detail = f"{where}: {len(request.masks[-1])} ids, not {len(meant)}"
        tallies["keep_masks"].note(good, detail=detail)
    if params.tells_logprobs:
        told, count = request.logprobs[-1], params.logprobs or 0
        error, good = _off(told, logits, token, count, params.logprob_token_ids)
        tallies["logprobs"].note(good, error, f"{where}: {told}")


def _off(
    told: Likelihood, logits: Row, token: int, count: int, ids: tuple[int, ...] | None
) -> tuple[float, bool]:
    """Return by how much log-probabilities are off, and whether all that is told is right."""
    meant = likelihood(logits, token, count)
    likeliest = dict(meant.likeliest)
    if ids is not None:
        likeliest = {i: likelihood(logits, i, 0).logprob for i in ids}
    error = abs(told.logprob - meant.logprob)
    for i, value in told.likeliest:
        error = max(error, abs(value - likeliest.get(i, np.inf)))
    same = (told.token, told.rank) == (meant.token, meant.rank)
    same &= [i for i, _ in told.likeliest] == list(likeliest)
    return float(min(error, 1e30)), bool(same and error <= LOGPROB_ERROR)
