"""Owns what the server costs: streams of a model that keeps a pace, read by a process of their own.

    python bench/server_load.py pace  [--streams 64] [--step-us 3800] [--seconds 10]
    python bench/server_load.py limit [--clients 200] [--limit 8] [--tokens 200]
    python bench/server_load.py soak  [--minutes 30] [--streams 16] [--wheel FILE --weights DIR]

`pace`: time between tokens at the reader, and the share of the paced tokens that arrive. `limit`:
how many of a burst are let in, and whether all that were got every token. `soak`: memory of both
processes under steady load, every thirtieth of the time; of a wheel it asks the model itself, and
compares with what the wheel says without a server. Prints one JSON line. Needs g++ and the toys of
tests/cpu.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cpu"))

from kernelgen_runtime import LLM, SamplingParams
from runtime_stub import following, write_artifact, write_checkpoint
from server_toys import ServerProcess, ids_of

LONGEST = 8192
PROMPTS = 97
"""different prompts, of one id each"""
SAMPLES = 30
CACHE = "256M"
"""of a real model: memory counts once it was written, so all of it shall be written early"""


@dataclass
class Read:
    """What one stream gave: its status, when tokens came, and its text."""

    status: int = 0
    times: list[float] = field(default_factory=list)
    text: str = ""


async def read_stream(port: int, first: int, tokens: int) -> Read:
    """Ask for `tokens` tokens after the id `first`, with as little of a client as there can be."""
    found = Read()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    asked = {"prompt": [first], "max_tokens": tokens, "stream": True, "temperature": 0}
    body = json.dumps(asked).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    found.status = int((await reader.readline()).split()[1])
    pieces = []
    while line := await reader.readline():
        if line.startswith(b'data: {"id"'):
            found.times.append(time.perf_counter())
            pieces.append(line)
    writer.close()
    found.text = "".join(json.loads(piece[6:])["choices"][0]["text"] for piece in pieces)
    return found


def read_all(port: int, streams: int, tokens: int, pipe: Any) -> None:
    """Read many streams at once, in a process of its own; send what came."""

    async def run() -> list[Read]:
        return await asyncio.gather(
            *(read_stream(port, k % PROMPTS, tokens) for k in range(streams))
        )

    pipe.send([(read.status, read.times, read.text) for read in asyncio.run(run())])


def ask_all(port: int, streams: int, tokens: int) -> list[Read]:
    """Return what a process of readers got."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=read_all, args=(port, streams, tokens, theirs)
    )
    process.start()
    found = [Read(*values) for values in ours.recv()]
    process.join()
    return found


@contextmanager
def server(step_us: int, rows: int, *options: object) -> Iterator[ServerProcess]:
    """A server whose model takes `step_us` a step for up to `rows` requests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = {"max_tokens": max(64, rows), "max_rows": rows, "max_positions": LONGEST}
        artifact = write_artifact(folder / "toy", step_us, **sizes)
        weights = write_checkpoint(folder / "weights")
        options = (*options, "--max-num-seqs", rows, "--disable-uvicorn-access-log")
        with running(artifact, weights, folder, "--max-model-len", LONGEST, *options) as made:
            yield made


@contextmanager
def running(
    artifact: Path, weights: Path, folder: Path, *options: object
) -> Iterator[ServerProcess]:
    """A server that is ready; `folder` takes its log."""
    made = ServerProcess(artifact, weights, folder, *options)
    try:
        made.wait_ready()
        yield made
    finally:
        made.close()


def processor_seconds(made: ServerProcess) -> tuple[float, float]:
    """Return what the API and the engine process have used so far."""

    def used(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return used(made.process.pid), used(made.engine_pids()[0])


def lost(reads: list[Read], tokens: int) -> int:
    """Return how many streams did not get exactly the tokens of the model."""
    return sum(
        ids_of(read.text) != following([k % PROMPTS], tokens)
        for k, read in enumerate(reads)
        if read.status == 200
    )


def pace(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the time between tokens at the reader."""
    tokens = int(options.seconds * 1e6 / options.step_us)
    with server(options.step_us, options.streams) as made:
        ask_all(made.port, options.streams, 20)
        before = processor_seconds(made)
        reads = ask_all(made.port, options.streams, tokens)
        after = processor_seconds(made)
    chunks = sum(len(read.times) for read in reads)
    first = max(read.times[0] for read in reads)
    last = min(read.times[-1] for read in reads)
    gaps = [b - a for read in reads for a, b in zip(read.times, read.times[1:], strict=False)]
    span = statistics.median(read.times[-1] - read.times[0] for read in reads)
    return {
        "streams": options.streams,
        "step_ms": options.step_us / 1e3,
        "gap_ms_median": 1e3 * statistics.median(gaps),
        "gap_ms_p99": 1e3 * statistics.quantiles(gaps, n=100)[98],
        "share_of_pace": (tokens - 1) * options.step_us / 1e6 / span,
        "chunks_per_second": chunks / (last - first),
        "api_us_per_token": 1e6 * (after[0] - before[0]) / (options.streams * tokens),
        "engine_us_per_step": 1e6 * (after[1] - before[1]) / tokens,
        "streams_with_wrong_tokens": lost(reads, tokens),
    }


def limit(options: argparse.Namespace) -> dict[str, Any]:
    """Count who is let in."""
    with server(2000, 64, "--max-num-queued-reqs", options.limit) as made:
        reads = ask_all(made.port, options.clients, options.tokens)
        statuses = [read.status for read in reads]
        left = made.metric("num_requests_unfinished")
        used = made.metric("kv_cache_usage_perc")
    return {
        "clients": options.clients,
        "limit": options.limit,
        "let_in": statuses.count(200),
        "refused": statuses.count(503),
        "streams_with_wrong_tokens": lost(reads, options.tokens),
        "places_left_behind": left,
        "cache_left_behind": used,
    }


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Measure memory over time."""
    if options.wheel is None:
        with server(1000, options.streams) as made:
            return steady(made, options, lost)
    texts = offline_texts(options)
    with tempfile.TemporaryDirectory() as name:
        more = ("--max-num-seqs", options.streams, "--kv-cache-memory-bytes", CACHE)
        with running(options.wheel, options.weights, Path(name), *more) as made:
            return steady(
                made,
                options,
                lambda reads, _: sum(
                    read.status != 200 or read.text != texts[k % PROMPTS]
                    for k, read in enumerate(reads)
                ),
            )


def steady(
    made: ServerProcess, options: argparse.Namespace, wrong: Callable[[list[Read], int], int]
) -> dict[str, Any]:
    """Keep a server busy with twice the streams that it runs; count what `wrong` finds."""
    begun, seconds = time.monotonic(), 60 * options.minutes
    faults = requests = 0
    sizes: list[tuple[float, int, int]] = []
    while (now := time.monotonic() - begun) < seconds:
        reads = ask_all(made.port, 2 * options.streams, options.tokens)
        faults += wrong(reads, options.tokens)
        requests += len(reads)
        if now >= len(sizes) * seconds / SAMPLES:
            sizes.append((round(now / 60, 1), *resident(made)))
    early, late = next(size for size in sizes if size[0] >= options.minutes / 10), sizes[-1]
    return {
        "minutes": options.minutes,
        "streams": options.streams,
        "requests": requests,
        "wrong_streams": faults,
        "growth_percent": [round(100 * (late[k] / early[k] - 1), 2) for k in (1, 2)],
        "minute_api_kb_engine_kb": sizes,
    }


def resident(made: ServerProcess) -> tuple[int, int]:
    """Return kilobytes of memory that the API and the engine process hold."""

    def held(pid: int) -> int:
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])

    return held(made.process.pid), held(made.engine_pids()[0])


def offline_texts(options: argparse.Namespace) -> list[str]:
    """Return what the wheel generates behind each prompt, without a server."""
    llm = LLM(options.wheel, options.weights, device="cpu")
    params = SamplingParams(temperature=0.0, max_tokens=options.tokens)
    return [output.text or "" for output in llm.generate([[k] for k in range(PROMPTS)], params)]


def main() -> None:
    """Run one measurement and print its line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("pace", "limit", "soak"))
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--step-us", type=int, default=3800)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--weights", type=Path)
    options = parser.parse_args()
    print(json.dumps({"pace": pace, "limit": limit, "soak": soak}[options.what](options)))


if __name__ == "__main__":
    main()
