"""Owns what a build and a start cost: times from nothing and again, growth, memory, both clocks."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE_BYTES = 64 << 20
LAYERS = (6, 60)
PLAN_RUNS = 9

_PEAK = """import sys; from kernelgen_runtime.cli import main; code = main(sys.argv[1:])
status = open('/proc/self/status').read().split()
print(status[status.index('VmHWM:') + 1], file=sys.stderr); sys.exit(code)"""

_PLAN = """import sys, time
from pathlib import Path
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import plan_model
models = [resolve(path) for path in sys.argv[2:]]
best = [float('inf')] * len(models)
for _ in range(int(sys.argv[1])):
    for i, model in enumerate(models):
        start = time.process_time()
        for phase, size in (('decode', 1), ('decode', 8), ('mixed', 512)):
            plan_model(model, 'sm_90', phase=phase, size=size)
        best[i] = min(best[i], time.process_time() - start)
print(*best)"""


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes. `folder` is the build that was made; growth is 60 layers over 6."""

    folder: Path
    cold_seconds: float
    warm_seconds: float
    same_bytes: bool
    plan_growth: float
    build_growth: float
    peak_bytes: int
    weight_bytes: int
    first_token_from_process: float
    first_token_from_imports: float
    answer: str

    def to_json(self) -> dict[str, Any]:
        """What the record keeps."""
        return {k: v for k, v in asdict(self).items() if k != "folder"}


def build_costs(weights: Path, work: Path) -> Costs:
    """Everything that is measured in processes of its own."""
    cold, wheel = timed_build(weights, work / "cold", work / "cache")
    warm, again = min(timed_build(weights, work / f"warm{i}", work / "cache") for i in range(3))
    name = json.loads((wheel.parent / "wheel.json").read_text())
    told = run_once(Path(name["folder"]), weights)
    return Costs(
        folder=Path(name["folder"]),
        cold_seconds=cold,
        warm_seconds=warm,
        same_bytes=wheel.read_bytes() == again.read_bytes(),
        plan_growth=plan_growth(weights, work),
        build_growth=build_growth(weights, work),
        peak_bytes=told["peak_bytes"],
        weight_bytes=sum(p.stat().st_size for p in weights.glob("*.safetensors")),
        first_token_from_process=told["first_token_seconds_from_process_start"],
        first_token_from_imports=told["first_token_seconds_from_imports_done"],
        answer=told["text"],
    )


def timed_build(model: Path, out: Path, cache: Path) -> tuple[float, Path]:
    """Seconds of `kernelgen build` from process start to its end, and the wheel."""
    start = time.perf_counter()
    done = command("-m", "kernelgen", "build", model, "--out", out, "--json", cache=cache)
    seconds = time.perf_counter() - start
    (out / "wheel.json").write_text(done.stdout)
    return seconds, Path(json.loads(done.stdout)["wheel"])


def run_once(build: Path, weights: Path) -> dict[str, Any]:
    """`run` with a question: its figures, its answer and the peak of its memory."""
    question = ["--prompt", "What is the capital of France?", "--max-tokens", 24, "--json"]
    limits = ["--kv-cache-memory-bytes", CACHE_BYTES, "--max-model-len", 1024]
    done = command("-c", _PEAK, "run", build, "--weights", weights, *question, *limits)
    told: dict[str, Any] = json.loads(done.stdout)
    figures = told.get("figures", told)
    return {**figures, "text": told["text"], "peak_bytes": int(done.stderr.split()[-1]) * 1024}


def plan_growth(weights: Path, work: Path) -> float:
    """Time of three plans of the model with 60 layers over that with 6."""
    models = [deeper(weights, layers, work) for layers in LAYERS]
    few, many = map(float, command("-c", _PLAN, PLAN_RUNS, *models).stdout.split())
    return many / few


def build_growth(weights: Path, work: Path) -> float:
    """Processor time of whole builds from nothing, compilers included, 60 layers over 6."""
    spent = []
    for layers in LAYERS:
        model = deeper(weights, layers, work)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        timed_build(model, work / f"out{layers}", work / f"cache{layers}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return spent[1] / spent[0]


def deeper(weights: Path, layers: int, work: Path) -> Path:
    """The model's config with another number of layers."""
    folder = work / f"layers{layers}"
    folder.mkdir(exist_ok=True)
    config = json.loads((weights / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    return folder


def command(*argv: object, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A Python child that finds this checkout; its failure ends the benchmark with its words."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    env = {**os.environ, "PYTHONPATH": path}
    if cache is not None:
        env["KERNELGEN_CACHE"] = str(cache)
    done = subprocess.run(
        [sys.executable, *map(str, argv)], capture_output=True, text=True, env=env
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done
