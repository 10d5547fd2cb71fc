"""Owns what the engine adds to the bare graph of a decode step, on the GPU that is here.

    python bench/engine_gpu.py BUILD [--requests 1 8 32 64 256] [--prompt 1024] [--tokens 256]

Random weights. `sizing`: what is free beside the cache, and what was to be spared. `throughput`:
requests of one length from the first token to the last; the median step while all of them decode,
and the bare graph replayed with the same requests alive. `sampler`: what choosing costs over the
greedy graph. Prints one JSON line for each.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.generation import Generation
from kernelgen_runtime.schedule.request import Request

UTILIZATION = 0.95
WARM_STEPS, TIMED_STEPS, REPLAYS = 32, 32, 60
LAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "top_k_top_p": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
}


def prompts(count: int, length: int, vocab: int) -> list[list[int]]:
    """Return prompts of random ids, the same for the same count."""
    chance = random.Random(count)
    return [[chance.randrange(vocab) for _ in range(length)] for _ in range(count)]


def bare_ms(llm: LLM, rows: int) -> float:
    """Return milliseconds of the decode graph of `rows` requests with the arguments that are on
    the device: nothing else runs between two replays."""
    plan, runner = llm.program._plans.choose(rows, rows), llm.program._runner
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with runner._api.on(runner._main):
        for _ in range(5):
            runner._graphs.replay(plan)
        events[0].record(runner._main)
        for _ in range(REPLAYS):
            runner._graphs.replay(plan)
        events[1].record(runner._main)
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / REPLAYS


def sizing(llm: LLM) -> dict[str, Any]:
    """Return how far free memory is from what was to be spared, in MiB."""
    free, total = torch.cuda.mem_get_info()
    spared = (1 - UTILIZATION) * total
    return {"free_mib": free >> 20, "error_mib": round((free - spared) / 2**20, 1)}


class Run:
    """Requests of one length that are generated together, and how long their steps take."""

    def __init__(self, llm: LLM, count: int, prompt: int, tokens: int) -> None:
        self._llm, self._count, self._tokens = llm, count, tokens
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        llm.reset_prefix_cache()
        rows = prompts(count, prompt, llm.manifest.vocab)
        self._generations = [one for row in rows for one in llm.choices(row, params)]
        self._by: dict[Request, Generation] = {one.request: one for one in self._generations}
        self.bare = 0.0

    def measure(self) -> dict[str, Any]:
        """Generate all; return the facts."""
        engine, steps, paused = self._llm.engine, list[float](), 0.0
        for one in self._generations:
            one.begin()
        start = time.perf_counter()
        while not all(one.is_finished for one in self._generations):
            began, before = time.perf_counter(), engine.meter.steps
            gained = engine.step()
            self._advance(gained)
            if engine.meter.steps > before and len(gained) == self._count:
                steps.append(time.perf_counter() - began)
                if len(steps) == WARM_STEPS + TIMED_STEPS:
                    pause = time.perf_counter()
                    self._measure_bare()
                    paused = time.perf_counter() - pause
        seconds = time.perf_counter() - start - paused
        for one in self._generations:
            one.finish()
        step = 1e3 * statistics.median(steps[WARM_STEPS : WARM_STEPS + TIMED_STEPS])
        return {
            "requests": self._count,
            "output_tokens_per_second": round(self._count * self._tokens / seconds),
            "decode_ms": round(step, 4),
            "bare_ms": round(self.bare, 4),
            "share_of_bare": round(self.bare / step, 4),
        }

    def _measure_bare(self) -> None:
        # What is in flight settles first: the graph runs alone, with all requests alive.
        while self._llm.engine._flights:
            self._advance(self._llm.engine._take())
        self.bare = bare_ms(self._llm, self._count)

    def _advance(self, gained: list[Request]) -> None:
        for request in gained:
            self._by[request].advance()


def sampler(llm: LLM, rows: int) -> dict[str, Any]:
    """Return microseconds that each law of choosing takes over the greedy one."""
    found = {}
    for name, law in LAWS.items():
        # Equal lengths: the last step is one of all rows, and its arguments stay on the device.
        params = SamplingParams(max_tokens=12, ignore_eos=True, seed=1, **law)
        llm.generate(prompts(rows, 30, llm.manifest.vocab), params)
        found[name] = 1e3 * bare_ms(llm, rows)
    return {"rows": rows} | {f"{n}_us": round(v - found["greedy"], 1) for n, v in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32, 64, 256])
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    if options.tokens < WARM_STEPS + TIMED_STEPS + 8:
        parser.error(f"--tokens: must be {WARM_STEPS + TIMED_STEPS + 8} or more")
    most = max(options.requests)
    llm = LLM(
        options.build,
        "random:1",
        device="cuda",
        max_num_seqs=most,
        gpu_memory_utilization=UTILIZATION,
    )
    print(json.dumps({"what": "sizing"} | sizing(llm)), flush=True)
    for count in options.requests:
        facts = Run(llm, count, options.prompt, options.tokens).measure()
        print(json.dumps({"what": "throughput"} | facts), flush=True)
    for rows in sorted({1, min(64, most)}):
        print(json.dumps({"what": "sampler"} | sampler(llm, rows)), flush=True)
    print(json.dumps({"what": "memory after", **sizing(llm)}), flush=True)


if __name__ == "__main__":
    main()
