"""Owns what the engine itself costs a step: everything but the model, whose place a fake takes.

    python bench/engine_loop.py [--running 64 256] [--prompt 512] [--tokens 256] [--window 128]
        [--gpu]

Prints one JSON line for each number of running requests: microseconds of processor time of one
decode step (schedule, args, launch, settle), and scheduled tokens per second of processor time,
prompts included. `--gpu` runs steps as on a GPU: arguments go up by what differs, ids come down,
graphs are replayed; the calls of the driver alone are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from kernelgen_runtime.artifact.manifest import (
    ArgsField,
    ArgsSchema,
    CacheGroup,
    CacheSchema,
    Manifest,
    Model,
    Plan,
    elements,
)
from kernelgen_runtime.device.cuda import CudaDevice
from kernelgen_runtime.device.device import Memory
from kernelgen_runtime.engine import Engine
from kernelgen_runtime.launch.args import ArgsWriter, SlotSampling
from kernelgen_runtime.launch.cuda_runner import CudaRunner
from kernelgen_runtime.launch.details import Answer
from kernelgen_runtime.launch.plans import plans_in_use
from kernelgen_runtime.launch.program import Program
from kernelgen_runtime.launch.runner import Logits, Runner
from kernelgen_runtime.memory.cache import CacheTables
from kernelgen_runtime.memory.groups import pages_of, peak_pages
from kernelgen_runtime.memory.pool import PagePool
from kernelgen_runtime.memory.retention import Retention
from kernelgen_runtime.sample.params import SamplingParams
from kernelgen_runtime.schedule.limits import Limits
from kernelgen_runtime.schedule.request import Request
from kernelgen_runtime.schedule.scheduler import Scheduler

VOCAB = 151_936
BUDGET = 2048


class NoModel:
    """A runner whose steps take no time: every id is the next of a counter."""

    logit_rows = 1

    def __init__(self, args: ArgsSchema, slots: int) -> None:
        words = torch.zeros(args.words, dtype=torch.int32)
        self._args = ArgsWriter(args, SlotSampling(slots), words)
        self._at = 0

    def misses_graph(self, plan: Plan) -> bool:
        return False

    def args(self) -> ArgsWriter:
        return self._args

    def start(self, plan: Plan, asked: int) -> Callable[[], Answer]:
        ids = (np.arange(self._at, self._at + asked) * 7919 % VOCAB).astype(np.int32)
        self._at += asked
        return lambda: Answer(ids)

    def logits(self, count: int) -> Logits:
        raise AssertionError("nobody asks")


class Nothing:
    """A stream, an event, a graph and a library of a GPU that is done at once."""

    def _done(self, *given: object) -> None:
        return

    wait_event = record = synchronize = replay = bind = load = step = _done


class NoGpu:
    """An `Accelerator` whose copies are made and whose other calls cost nothing."""

    label, place = "none", torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(1 << 40, 1 << 40)

    def zeros(self, size: int) -> torch.Tensor:
        base = torch.zeros(size + 256, dtype=torch.uint8)
        start = -base.data_ptr() % 256
        return base[start : start + size]

    def pinned(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def stream(self) -> Nothing:
        return Nothing()

    event = graph_pool = stream

    @contextmanager
    def on(self, stream: Nothing) -> Iterator[None]:
        yield

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def capture(self, work: Callable[[], None], stream: Nothing, pool: object) -> Nothing:
        return Nothing()

    def synchronize(self) -> None:
        return


def gpu_runner(manifest: Manifest, plans: Any, slots: int) -> CudaRunner:
    """The runner of a GPU without one."""
    library: Any = Nothing()
    gpu: Any = NoGpu()
    device = CudaDevice(gpu)
    runner = CudaRunner(device, library, manifest, {}, plans=plans, slots=slots, logit_rows=slots)
    runner.warm_up()
    runner.give_cache(2)
    runner.capture()
    runner._bound["sampled"].zero_()
    return runner


def args_schema(
    groups: tuple[CacheGroup, ...], max_tokens: int, rows: int, pages: int
) -> ArgsSchema:
    """The fields of docs/abi.md one behind the other."""
    ints = {
        "counts": (4,),
        "token_ids": (max_tokens,),
        "row_slot": (rows,),
        "row_query_start": (rows + 1,),
        "row_seq_len": (rows,),
        "logit_token": (rows,),
        "logit_row": (rows,),
        "top_k": (rows,),
        "seed": (rows, 2),
        **{f"block_table.{group.name}": (rows, pages) for group in groups},
    }
    floats = {"temperature": (rows,), "top_p": (rows,)}
    fields, at = [], 0
    for shapes, bits in ((floats, "float32"), (ints, "int32")):
        for name, shape in shapes.items():
            fields.append(ArgsField(name, at, shape, bits))
            at += elements(shape)
    return ArgsSchema(at, max_tokens, rows, pages, tuple(fields))


def engine(running: int, length: int, window: int | None, depth: int, gpu: bool) -> Engine:
    """An engine for that many requests of `length` tokens, the cache large enough for all."""
    groups = [CacheGroup("full", None, (0,))]
    groups += [CacheGroup("window", window, (1,))] if window else []
    args = args_schema(tuple(groups), BUDGET, running, pages_of(length))
    plans = [Plan(0, "decode", running, running, 0), Plan(1, "mixed", BUDGET, running, 0)]
    model = Model("none", "0", "none", "bfloat16", VOCAB, length, (), (), (), None)
    schema = CacheSchema(4096, tuple(groups))
    manifest = Manifest(model, "cpu", (), (), (), schema, args, tuple(plans), 0)
    limits = Limits(running, BUDGET, length, steps_in_flight=depth)
    pool = PagePool(1 + running * (2 + peak_pages(groups, length, limits.in_flight_tokens)))
    tables = CacheTables(groups, running, args.max_pages, pool, Retention())
    table = plans_in_use(plans, running, BUDGET)
    runner: Runner = NoModel(args, running)
    if gpu:
        runner = gpu_runner(manifest, table, running)
    program = Program(runner, table, tables, VOCAB)
    return Engine(manifest, Scheduler(limits, tables), program)


def measure(
    running: int, prompt: int, tokens: int, window: int | None, depth: int, gpu: bool
) -> dict[str, object]:
    """Run four waves of requests of different lengths; take the time of whole decode steps."""
    chance, one = random.Random(0), engine(running, prompt + tokens + 16, window, depth, gpu)
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    scheduled = 0
    for number in range(4 * running):
        ids = [chance.randrange(VOCAB) for _ in range(prompt // 2 + chance.randrange(prompt // 2))]
        limit = len(ids) + tokens // 2 + chance.randrange(tokens // 2)
        scheduled += limit - 1  # the last token is never computed
        one.add(Request(number, ids, params, 0, frozenset(), limit))
    steps, start = [], time.process_time()
    while one.scheduler.has_work:
        began, decoded = time.thread_time(), one.meter.steps
        gained = one.step()
        if one.meter.steps > decoded and len(gained) == running:
            steps.append(time.thread_time() - began)
    seconds = time.process_time() - start
    return {
        "running": running,
        "prompt": prompt,
        "tokens": tokens,
        "groups": 1 + bool(window),
        "depth": depth,
        "runner": "gpu" if gpu else "none",
        "decode_step_us": round(1e6 * statistics.median(steps), 1),
        "decode_step_p90_us": round(1e6 * statistics.quantiles(steps, n=10)[-1], 1),
        "scheduled_tokens_per_second": round(scheduled / seconds),
        "decode_tokens_per_second": round(running / statistics.median(steps)),
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--window", type=int, help="a second cache group with this window")
    parser.add_argument("--depth", type=int, default=2, help="steps in flight")
    parser.add_argument("--gpu", action="store_true", help="run steps as on a GPU")
    options = parser.parse_args()
    for running in options.running:
        of = (running, options.prompt, options.tokens, options.window, options.depth, options.gpu)
        print(json.dumps(measure(*of)), flush=True)


if __name__ == "__main__":
    main()
