"""Owns the whole-step figures of a GPU build: decode at several batches, and prefill.

    python bench/decode_gpu.py BUILD [--batches 1,8,32,64] [--prompt 128] [--tokens 64] [--json F]

Weights are made up on the device, prompts are random, decoding is greedy; sampling and the
runtime's own work are included. It needs the runtime alone (`PYTHONPATH=runtime`), torch, numpy
and apache-tvm-ffi.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from kernelgen_runtime.llm import LLM
from kernelgen_runtime.sample.params import SamplingParams

ROUNDS = 3


def seconds(llm: LLM, prompts: list[list[int]], tokens: int) -> float:
    """Time to generate `tokens` for every prompt, prefill included."""
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    llm.generate(prompts, params)
    return time.perf_counter() - start


def measure(llm: LLM, batch: int, prompt: int, tokens: int) -> dict[str, Any]:
    """Median and spread: ms a decode step, and ms until all prompts have their first token."""
    rng = np.random.default_rng(batch)
    rows = [rng.integers(0, llm.manifest.vocab, prompt).tolist() for _ in range(batch)]
    seconds(llm, rows, 4)
    first = [seconds(llm, rows, 1) for _ in range(ROUNDS)]
    steps = [(seconds(llm, rows, tokens + 1) - median(first)) / tokens * 1e3 for _ in range(ROUNDS)]
    return {
        "batch": batch,
        "prompt": prompt,
        "step_ms": round(median(steps), 3),
        "step_ms_range": [round(min(steps), 3), round(max(steps), 3)],
        "first_token_ms": round(median(first) * 1e3, 2),
    }


def read_tb_s() -> float:
    """Read bandwidth of the device once its clocks have risen, 10¹² bytes a second."""
    data = torch.empty(1 << 30, dtype=torch.bfloat16, device="cuda").normal_()
    square = data[: 1 << 26].view(8192, 8192)
    stop = time.perf_counter() + 1.5
    while time.perf_counter() < stop:
        torch.mm(square, square)
        torch.cuda.synchronize()
    data.sum()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(10):
        data.sum()
    end.record()
    torch.cuda.synchronize()
    return data.numel() * 2 * 10 / begin.elapsed_time(end) / 1e9


def main() -> None:
    """Measure and print one line a batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("build")
    parser.add_argument("--batches", default="1,8,32,64")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=1280)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    batches = [int(b) for b in options.batches.split(",")]
    start = time.perf_counter()
    llm = LLM(
        options.build,
        "random:1",
        device="cuda",
        max_num_seqs=max(batches),
        max_model_len=options.max_model_len,
        max_num_batched_tokens=8192,
    )
    ready = time.perf_counter() - start
    rows = [measure(llm, batch, options.prompt, options.tokens) for batch in batches]
    del llm
    found = {
        "build": Path(options.build).name,
        "device": torch.cuda.get_device_name(),
        "ready_s": round(ready, 2),
        "read_tb_s": round(read_tb_s(), 2),
        "rows": rows,
    }
    for row in rows:
        print(found["build"], row)
    print({key: value for key, value in found.items() if key != "rows"})
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
