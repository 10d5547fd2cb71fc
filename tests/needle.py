"""One request hidden among random ones: everything that is told of it, as bits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.generation import Output
from kernelgen_runtime.sample.reference import Likelihood


@dataclass(frozen=True)
class Needle:
    """A prompt and what is asked of it."""

    prompt: tuple[int, ...]
    params: SamplingParams

    def without_prompt(self) -> Needle:
        """The same without log-probabilities of the prompt, which then may come from the cache."""
        return replace(self, params=replace(self.params, prompt_logprobs=None))


def needle_of(vocab: int, length: int, tokens: int, seed: int = 7) -> Needle:
    """Sampling with every filter, log-probabilities of all tokens."""
    chance = random.Random(seed)
    params = SamplingParams(
        temperature=0.9,
        top_k=min(40, vocab // 2),
        top_p=0.95,
        seed=11,
        max_tokens=tokens,
        ignore_eos=True,
        logprobs=3,
        prompt_logprobs=2,
    )
    return Needle(tuple(chance.randrange(vocab) for _ in range(length)), params)


def facts(output: Output) -> dict[str, Any]:
    """What is told of a request, numbers as bits."""
    return {
        "tokens": output.token_ids,
        "logprobs": [_bits(told) for told in output.logprobs or ()],
        "prompt_logprobs": [told and _bits(told) for told in output.prompt_logprobs or ()],
    }


def hidden(
    llm: LLM, needle: Needle, company: Sequence[int], longest: int, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """What is told of the needle among so many random requests each time, at a random place."""
    chance, vocab = random.Random(seed), llm.manifest.vocab
    for count in company:
        prompts = [
            [chance.randrange(vocab) for _ in range(chance.randrange(1, longest))]
            for _ in range(count)
        ]
        asked = [
            SamplingParams(
                temperature=chance.choice([0.0, 0.8]),
                max_tokens=chance.randrange(1, 2 + needle.params.max_tokens or 8),
                ignore_eos=True,
                seed=i,
                logprobs=chance.choice([None, 1]),
            )
            for i in range(count)
        ]
        place = chance.randrange(count + 1)
        prompts.insert(place, list(needle.prompt))
        asked.insert(place, needle.params)
        yield facts(llm.generate(prompts, asked)[place])


def _bits(told: Likelihood) -> tuple[Any, ...]:
    likeliest = tuple((token, np.float32(value).tobytes()) for token, value in told.likeliest)
    return told.token, np.float32(told.logprob).tobytes(), told.rank, likeliest
