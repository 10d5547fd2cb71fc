"""SmolLM2-135M on this machine's CPU, beside transformers in the same run.

    python bench/smollm2_cpu.py WEIGHTS [--threads 2] [--budget 600] [--record]

WEIGHTS is a checkpoint folder (`python tests/oracle/make_smollm2.py DIR` writes one). Every round
runs each case once with each engine, one after the other, so that whatever else the machine does
hits all of them; rounds go on until every series is steady or the budget of seconds is spent.
`--record` writes `records/smollm2_cpu.json` and the tables in RESULTS.md and README.md. The exit
code is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from build_costs import Costs, build_costs
from results import tables, write_record
from series import Series

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Case:
    """What is run: `tokens` are what a second is divided by."""

    name: str
    prompt: int
    batch: int
    steps: int

    @property
    def clock(self) -> str:
        """The part of the answer that is measured."""
        return "decode_seconds" if self.steps else "prefill_seconds"

    @property
    def tokens(self) -> int:
        """Tokens that the clock ran for."""
        return self.batch * (self.steps or self.prompt)


CASES = (
    Case("decode, batch 1", 64, 1, 64),
    Case("decode, batch 8", 64, 8, 32),
    Case("prefill of 512", 512, 1, 0),
)


@dataclass
class Engine:
    """A child process that runs cases, and what it measured: tokens/s by case."""

    name: str
    process: subprocess.Popen[str]
    speed: dict[str, Series] = field(default_factory=dict)
    bandwidth: Series = field(default_factory=Series)
    share: Series = field(default_factory=Series)

    def run(self, case: Case) -> None:
        """One case; ours also tells how much of the read bandwidth its decoding took."""
        answer = self.ask(case)
        self.speed.setdefault(case.name, Series()).add(case.tokens / answer[case.clock])
        if answer["bandwidth"] and case.batch == 1 and case.steps:
            achieved = answer["decode_bytes"] / answer["decode_seconds"] / 1e9
            self.bandwidth.add(answer["bandwidth"])
            self.share.add(achieved / answer["bandwidth"])

    def ask(self, case: Case) -> dict[str, Any]:
        """The child's answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        question = {"prompt": case.prompt, "batch": case.batch, "steps": case.steps}
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def start(stack: ExitStack, name: str, *arguments: str, **env: str) -> Engine:
    """An engine that has loaded its weights and run each case once to warm up."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, str(HERE / "engines.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **env},
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    while process.stdout.readline() not in ("ready\n", ""):
        pass
    engine = Engine(name, process)
    for case in CASES:
        engine.ask(case)
    return engine


def isas_of(build: Path) -> list[str]:
    """Instruction sets of the build that this machine runs, best first."""
    manifest = json.loads((build / "manifest.json").read_text())
    libraries = manifest["targets"][0]["libraries"]
    return [library["isa"] for library in libraries if library["measured"]]


def measured(build: Path, weights: str, threads: int, budget: float) -> list[Engine]:
    """Rounds of all engines until all series are steady or the budget is spent."""
    with ExitStack() as stack:
        isas = isas_of(build)
        engines = [
            start(stack, isa, "ours", str(build), weights, str(threads), KERNELGEN_ISA=isa)
            for isa in isas
        ]
        for dtype in ("bfloat16", "float32"):
            name = f"transformers {dtype}"
            engines.append(start(stack, name, "peer", dtype, weights, str(threads)))
        began = time.perf_counter()
        while True:
            for case in CASES:
                for engine in engines:
                    engine.run(case)
            every = [series for engine in engines for series in engine.speed.values()]
            spent = time.perf_counter() - began
            rounds = len(every[0].values)
            worst = max(series.spread for series in every)
            print(f"round {rounds}, {spent:.0f} s, spread {worst:.1%}", file=sys.stderr)
            if all(series.steady for series in every) or (spent > budget and rounds >= 3):
                return engines


def machine() -> dict[str, Any]:
    """What has to stand beside the figures."""
    from importlib import metadata

    info = Path("/proc/cpuinfo").read_text()
    model = next(line.split(":")[1].strip() for line in info.split("\n") if "model name" in line)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
        "load_before": os.getloadavg()[0],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", help="checkpoint folder of SmolLM2-135M-Instruct")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=600, help="seconds for the rounds")
    parser.add_argument("--record", action="store_true", help="write RESULTS.md and the record")
    options = parser.parse_args()
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="kernelgen-bench-") as folder:
        costs: Costs = build_costs(Path(options.weights), Path(folder))
        engines = measured(costs.folder, options.weights, options.threads, options.budget)
    command = f"python bench/smollm2_cpu.py WEIGHTS --threads {options.threads}"
    text, missed = tables(engines, costs, facts, command)
    print(text)
    if options.record:
        write_record(engines, costs, facts, command, text)
    if missed:
        print("missed: " + "; ".join(missed), file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
