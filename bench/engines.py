"""Owns the two engines that are compared, each in a process that runs a case when told.

    python engines.py ours BUILD WEIGHTS THREADS | python engines.py peer DTYPE WEIGHTS THREADS

Reads one JSON object a line, `{"prompt": tokens, "batch": n, "steps": n}`, and answers with
`{"prefill_seconds", "decode_seconds", "decode_bytes", "bandwidth"}` (null where it has no such
figure). A prompt is ids that say nothing: speed does not depend on them.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

Answer = dict[str, float | None]
BANDWIDTH_SECONDS = 0.3


def prompts(tokens: int, batch: int) -> list[list[int]]:
    """Different ids for every request, all of them ordinary tokens."""
    return [[100 + (37 * i + 911 * row) % 40000 for i in range(tokens)] for row in range(batch)]


class Ours:
    """The wheel's runtime."""

    def __init__(self, build: str, weights: str, threads: int) -> None:
        from kernelgen_runtime import LLM

        self.llm = LLM(
            build,
            weights,
            threads=threads,
            max_num_seqs=8,
            max_model_len=1024,
            enable_prefix_caching=False,  # every round computes the same prompts
        )

    def run(self, prompt: int, batch: int, steps: int) -> Answer:
        """One batch from prompts to their last token."""
        from kernelgen_runtime import SamplingParams

        meter = self.llm.engine.meter
        before = (meter.seconds, meter.bytes, meter.steps)
        params = SamplingParams(temperature=0.0, max_tokens=steps + 1, ignore_eos=True)
        outputs = self.llm.generate(prompts(prompt, batch), params)
        times = [output.timings for output in outputs]
        if meter.steps - before[2] != steps:
            raise SystemExit(f"{meter.steps - before[2]} decode steps instead of {steps}")
        return {
            "prefill_seconds": max(t.first_token for t in times) - min(t.scheduled for t in times),
            "decode_seconds": meter.seconds - before[0],
            "decode_bytes": float(meter.bytes - before[1]),
            "bandwidth": self.llm.library.read_bandwidth(BANDWIDTH_SECONDS),
        }


class Peer:
    """transformers in eager mode with its default attention and key-value cache."""

    def __init__(self, dtype: str, weights: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(weights, dtype=getattr(torch, dtype))
        self.model.eval()

    def run(self, prompt: int, batch: int, steps: int) -> Answer:
        """The same batch; the head computes the last row of a prompt alone, as ours does."""
        import torch

        ids: Any = torch.tensor(prompts(prompt, batch))
        with torch.inference_mode():
            start = time.perf_counter()
            out = self.model(ids, use_cache=True, logits_to_keep=1)
            ids = out.logits[:, -1:].argmax(-1)
            first = time.perf_counter()
            for _ in range(steps):
                out = self.model(ids, past_key_values=out.past_key_values, logits_to_keep=1)
                ids = out.logits[:, -1:].argmax(-1)
            end = time.perf_counter()
        return {
            "prefill_seconds": first - start,
            "decode_seconds": end - first,
            "decode_bytes": None,
            "bandwidth": None,
        }


def main() -> None:
    """The command line."""
    kind, what, weights, threads = sys.argv[1:]
    engine = {"ours": Ours, "peer": Peer}[kind](what, weights, int(threads))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
