"""Proves the benchmark: its arithmetic on made-up records, its refusals, and a run on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_builds import build, environment, small_config, this_isa

from kernelgen.bench import peers, run
from kernelgen.bench.built import Built, Heads, LayerCache, StepPlan, read_built
from kernelgen.bench.case import Case, check_cases, parse_batches, prompts
from kernelgen.bench.children import python_child
from kernelgen.bench.grids import markdown, start_grid
from kernelgen.bench.kernels import by_kernel, measured_launches
from kernelgen.bench.machine import Clocks, machine
from kernelgen.bench.matrices import matrices, ours, ours_in_all
from kernelgen.bench.options import Options
from kernelgen.bench.play import Played, StepFigures, check_none_failed
from kernelgen.bench.records import Record, advances, profile
from kernelgen.bench.report import Report, Setup
from kernelgen.bench.series import Series
from kernelgen.bench.start import figures_of
from kernelgen.cli import main
from kernelgen.cli.benchmark import parse_baselines, subject
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import lowered, plan_model
from kernelgen.core.errors import (
    CheckFailed,
    KernelgenError,
    NoDeviceError,
    UnsupportedError,
    UsageError,
)
from kernelgen.report.plan_data import read_plan

MODEL = "smollm2-135m-instruct"
BATCH, CONTEXT = 8, 136


# --- kernel records


def step_of(names: list[str], start: int, wait: int = 4) -> list[Record]:
    """A step of dependent launches, 10 ns apart: each starts `wait` before the one before ends."""
    found, end = [], start
    for i, name in enumerate(names):
        begin = end - wait if i else start
        end = begin + wait + 10
        found.append(Record(name, begin, end))
    return found


def records_of(names: list[str], steps: int, prompt: list[str]) -> list[Record]:
    found, at = step_of(prompt, 0), 1000
    for _ in range(steps):
        found += step_of(names, at)
        at = found[-1].end + 50
    return found


def test_steps_are_split_and_overlap_is_counted_once() -> None:
    names = ["prepare", "embed", "product", "attend", "product", "choose"]
    found = profile(records_of(names, 9, ["prepare", "wide", "choose"]))
    assert found is not None
    step = found.decode
    assert step.steps == 7  # the first two are left out
    assert [launch.name for launch in step.launches] == names
    assert [launch.duration_us for launch in step.launches] == [0.014] * 6
    assert [launch.advance_us for launch in step.launches] == [0.014] + [0.01] * 5
    assert step.span_us == 0.064 and step.between_us == 0.05
    assert [(k.name, k.count, k.advance_us) for k in found.prompt] == [
        ("prepare", 1, 0.014),
        ("wide", 1, 0.01),
        ("choose", 1, 0.01),
    ]


def test_records_of_one_step_say_nothing() -> None:
    assert profile([]) is None
    assert profile(records_of(["a", "b"], 1, ["c", "b"])) is None


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**5)), min_size=1, max_size=40))
def test_advances_sum_to_the_span_less_idle_gaps(spans: list[tuple[int, int]]) -> None:
    records = sorted((Record("k", a, a + d) for a, d in spans), key=lambda r: r.start)
    moved = advances(records)
    assert min(moved) >= 0
    assert sum(moved) == max(r.end for r in records) - records[0].start


# --- plan and records together


@pytest.fixture(scope="module")
def gpu() -> Built:
    """The build of a GPU target as far as its plans go: nothing is compiled."""
    source = resolve(MODEL)
    spec = lowered(source, "bfloat16").spec
    data = plan_model(source, "sm_90", phase="decode", size=BATCH).to_json()
    heads, kv, width, hidden = 9, 3, 64, 576
    shapes = {"embed.weight": (spec.vocab, hidden)}
    for i in range(30):
        of = {"attn.q": heads * width, "attn.k": kv * width, "attn.v": kv * width}
        shapes |= {f"layers.{i}.{op}.weight": (rows, hidden) for op, rows in of.items()}
        shapes[f"layers.{i}.attn.o.weight"] = (hidden, heads * width)
        shapes |= {f"layers.{i}.mlp.{op}.weight": (1536, hidden) for op in ("gate", "up")}
        shapes[f"layers.{i}.mlp.down.weight"] = (hidden, 1536)
    return Built(
        name=MODEL,
        target="sm_90:h200",
        dtype="bfloat16",
        vocab=spec.vocab,
        layers={i: LayerCache(2 * kv * width * 2, None) for i in range(30)},
        heads={i: Heads(heads, kv, width, None) for i in range(30)},
        matrices=shapes,
        weight_bytes=2 * sum(n * k for n, k in shapes.values()),
        decode_sizes=(1, 2, 4, 8),
        plans={("decode", BATCH): StepPlan(read_plan(data), data["floor_bytes"])},
    )


def launches_of(gpu: Built, batch: int, context: int) -> tuple[Any, str]:
    view = gpu.plans["decode", BATCH].view
    names = ["prepare", *(k.name.replace(".", "_") for k in view.kernels)]
    found = profile(records_of(names, 6, ["prompt", names[-1]]))
    assert found is not None
    return measured_launches(found.decode, gpu, Case(batch, 128, 64), context)


def test_launches_take_the_plans_bytes(gpu: Built) -> None:
    view = gpu.plans["decode", BATCH].view
    launches, problem = launches_of(gpu, BATCH, view.context)
    assert not problem and launches[0].planned is None
    assert [launch.bytes for launch in launches[1:]] == [k.bytes for k in view.kernels]
    kernels = by_kernel(launches)
    assert sum(k.launches for k in kernels) == len(view.kernels) + 1
    one = next(k for k in kernels if k.launches == 30)
    assert one.gb_s == round(one.bytes / one.advance_us / 1e3, 1)


def test_bytes_follow_batch_and_context(gpu: Built) -> None:
    view = gpu.plans["decode", BATCH].view
    launches, _ = launches_of(gpu, 5, CONTEXT)
    moved = [launch.bytes - launch.planned.bytes for launch in launches[1:]]
    per_token = gpu.layers[0].token_bytes
    less = per_token * (5 * CONTEXT - BATCH * view.context)
    assert sorted(set(moved)) == [less, 0] and moved.count(less) == 30
    floor = gpu.plans["decode", BATCH].floor_bytes
    assert gpu.floor_bytes(5, CONTEXT) == floor + 30 * less
    assert gpu.floor_bytes(BATCH, view.context) == floor


def test_a_window_bounds_what_is_read() -> None:
    assert LayerCache(4, 100).read_bytes(50) == 200
    assert LayerCache(4, 100).read_bytes(500) == 400
    assert LayerCache(4, None).read_bytes(500) == 2000


def test_other_kernels_than_the_plans_get_no_bytes(gpu: Built) -> None:
    found = profile(records_of(["prepare", "strange"], 6, []))
    assert found is not None
    launches, problem = measured_launches(found.decode, gpu, Case(8, 128, 64), CONTEXT)
    assert "not those of plan decode 8" in problem
    assert {launch.bytes for launch in launches} == {None}
    _, problem = measured_launches(found.decode, gpu, Case(1, 128, 64), CONTEXT)
    assert "holds no plan of 1 requests" in problem


def test_matrices_with_one_input_are_one_product(gpu: Built) -> None:
    found = matrices(gpu, gpu.plans["decode", BATCH].view)
    assert {m.name: (m.outputs, m.inputs, m.count) for m in found} == {
        "attn.q + attn.k + attn.v": (960, 576, 30),
        "attn.o": (576, 576, 30),
        "mlp.gate + mlp.up": (3072, 576, 30),
        "mlp.down": (576, 1536, 30),
        "head": (49152, 576, 1),
    }
    launches, _ = launches_of(gpu, BATCH, CONTEXT)
    first = next(m for m in found if m.name.startswith("attn.q"))
    owners = {x.planned.name for x in launches[1:] if {"attn.q", "attn.k"} & set(x.planned.ops)}
    assert ours(first, launches) == pytest.approx(0.01 * len(owners))
    products = [x for x in launches[1:] if {o for m in found for o in m.ops} & set(x.planned.ops)]
    sampled = [x for x in products if not x.planned.flops]  # the second pass of the head
    assert ours_in_all(found, launches) == round(0.01 * (len(products) - len(sampled)), 1)
    assert ours_in_all(found, ()) is None


# --- steps


def test_the_last_step_is_left_out() -> None:
    assert Played(0.5, (1.0, 2.0, 3.0, 3.5)).intervals == (1.0, 1.0)


def test_series() -> None:
    series = Series.of([0.0021, 0.0019, 0.0020], 1e6)
    assert (series.median, series.low, series.high) == (2000.0, 1900.0, 2100.0)
    assert series.text == "2000.0 (1900.0–2100.0)" and Series.of([3.14159]).text == "3.14"


# --- what is refused


def test_prompts_are_ordinary_and_differ() -> None:
    rows = prompts(Case(3, 50, 8), 97)
    assert all(0 <= i < 97 for row in rows for i in row)
    assert all(len(row) == 50 for row in rows) and all(a != b for a, b in pairwise(rows))


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-1", "1.5"])
def test_batches_are_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="--batch"):
        parse_batches(text)


@pytest.mark.parametrize(
    ("case", "part"),
    [
        (Case(9, 8, 8), "--batch: is 9, beyond the largest decode plan (allowed: 1 to 8"),
        (Case(1, 100, 60), "sequences of 160 tokens (allowed: together at most 128)"),
        (Case(1, 0, 8), "at least 1 and 8"),
        (Case(1, 8, 2), "are 8 and 2"),
    ],
)
def test_cases_beyond_the_build(case: Case, part: str) -> None:
    with pytest.raises(UsageError) as error:
        check_cases([case], (1, 8), 128)
    assert part in str(error.value)
    check_cases([Case(8, 64, 64)], (1, 8), 128)


def test_baselines() -> None:
    known = ("cublas", "sdpa")
    assert parse_baselines(None, known, ("sdpa",)) == ("sdpa",)
    assert parse_baselines("none", known, known) == ()
    assert parse_baselines("sdpa,sdpa", known, known) == ("sdpa",)
    with pytest.raises(UsageError, match="allowed: none, cublas, sdpa"):
        parse_baselines("cudnn", known, known)


def gpus(monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
    from kernelgen_runtime.device import found as module

    monkeypatch.setattr(module, "find_gpus", lambda: module.Found(found, "no driver"))


def test_no_gpu_and_the_wrong_one_are_said_before_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch)
    with pytest.raises(NoDeviceError, match="needs sm_90, found no NVIDIA GPU"):
        subject(MODEL, "sm_90", "bfloat16")
    gpus(monkeypatch, SimpleNamespace(index=0, name="NVIDIA A10", sm=86))
    with pytest.raises(UnsupportedError, match=r"needs sm_90, found sm_86 \(NVIDIA A10\)"):
        subject(MODEL, "sm_90", "bfloat16")
    with pytest.raises(UnsupportedError, match="target 'sm_91' is not known"):
        subject(MODEL, "sm_91", "bfloat16")


def test_a_child_says_why_it_failed() -> None:
    command = ["run", "/nowhere", "--weights", "random", "--prompt", "x"]
    with pytest.raises(KernelgenError, match="no such file"):
        python_child(["-m", "kernelgen_runtime", *command])
    with pytest.raises(KernelgenError, match="gave no figures"):
        python_child(["-c", "print('hello')"])
    with pytest.raises(KernelgenError, match=r"longer than 0\.2 s"):
        python_child(["-c", "import time; time.sleep(9)"], seconds=0.2)


def test_an_engine_that_is_not_there_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(1, 8, 8)
    missing = peers.Adapter("other", "no_such_engine", "no.such.module")
    broken = peers.Adapter("broken", "json", "no.such.module")
    known = {"other": missing, "broken": broken}
    monkeypatch.setattr(peers, "ADAPTERS", known)
    (row,) = peers.measure_engine("other", {"vocab_size": 9}, "float32", "cpu", [case], 1)
    assert row.problem == "no_such_engine is not installed" and row.step_us is None
    (row,) = peers.measure_engine("broken", {"vocab_size": 9}, "float32", "cpu", [case], 1)
    assert "No module named 'no'" in row.problem
    (row,) = peers.measure_engine("broken", None, "float32", "cpu", [case], 1)
    assert "config.json" in row.problem


@pytest.mark.soak
def test_transformers_answers() -> None:
    config = small_config()
    case = Case(2, 8, 8)
    (row,) = peers.measure_engine("transformers", config, "float32", "cpu", [case], 2)
    assert not row.problem and row.step_us is not None and row.step_us.low > 0


# --- whole runs


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(small_config(), tmp_path_factory.mktemp("bench"), isas=(this_isa(),))


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_run_on_the_cpu(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, page = tmp_path / "bench.json", tmp_path / "bench.md"
    options = ["--batch", "1,3", "--prompt", "20", "--tokens", "8", "--rounds", "2"]
    files = ["--threads", "1", "--json", str(data), "--markdown", str(page)]
    code, out, err = call(capsys, str(small), *options, *files)
    assert code == 0, err
    told = json.loads(data.read_text())
    assert told["schema"] == 1
    steps = [row for row in told["rows"] if row["kind"] == "step"]
    assert [(row["batch"], row["plan_size"]) for row in steps] == [(1, 1), (3, 4)]
    for row in steps:
        assert len(row["step_us"]["values"]) == 2 and row["step_us"]["median"] > 0
        assert row["prefill_ms"]["median"] > 0 and row["floor_us"] > 0 and row["gb_s"] > 0
        assert row["command"].endswith(f"--threads 1 --batch {row['batch']}")
        for field in ("device", "date", "driver", "clocks", "versions", "weights", "target"):
            assert field in row
    assert told["setup"]["ready_s"] > 0 and told["setup"]["ceiling_gb_s"] > 0
    assert steps[1]["floor_bytes"] > steps[0]["floor_bytes"]
    assert "Whole decode steps" in out and "kernelgen bench" in out
    tables = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in tables}) == 1 and len(tables) == 4


def test_starts_on_the_cpu(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five processes, each to its first token: both clocks, loading, memory, nothing compiled."""
    data, page = tmp_path / "bench.json", tmp_path / "bench.md"
    options = ["--prompt", "8", "--tokens", "8", "--rounds", "1", "--threads", "1", "--start"]
    code, out, err = call(
        capsys, str(small), *options, "--json", str(data), "--markdown", str(page)
    )
    assert code == 0, err
    (row,) = (r for r in json.loads(data.read_text())["rows"] if r["kind"] == "start")
    for clocks, count, most in ((row["one"], 3, 1), (row["all"], 2, 256)):
        whole = clocks["process_to_first_token_s"]["values"]
        since = clocks["imports_to_first_token_s"]["values"]
        assert len(whole) == len(since) == count and clocks["requests"] == most
        assert all(a > b > 0 for a, b in zip(whole, since, strict=True))
        parts = clocks["parts"]
        assert {"artifact", "device", "library", "weights", "buffers", "first_token"} <= {*parts}
        assert sum(parts.values()) <= min(since) + 0.001
        assert parts["weights"] >= min(clocks["load_s"]["values"]) > 0 and clocks["graphs"] == 0
    assert row["load_bytes"] > 0 and row["load_gb_s"] > 0
    assert 50e6 < row["peak_host_bytes"] < 1e9
    assert row["processes"] == [] and row["triton_imported"] is False
    assert "imports done → first token" in out and "ran no program, Triton not imported" in out
    assert "256 requests at once" in page.read_text() and row["command"].count("--start") == 1


def test_a_start_that_runs_a_compiler_is_told() -> None:
    told = {
        "first_token_seconds_from_process_start": 3.0,
        "first_token_seconds_from_imports_done": 1.0,
        "start_seconds": {"graphs": 0.5, "weights": 0.2},
        "load_bytes": 2_000_000_000,
        "load_seconds": 0.2,
        "peak_host_bytes": 1 << 30,
        "graphs": 11,
        "processes": [],
        "triton_imported": False,
    }
    slow = {**told, "first_token_seconds_from_imports_done": 2.0, "load_seconds": 0.4}
    noisy = {**slow, "processes": ["g++", "g++", "ptxas"], "triton_imported": True}
    figures = figures_of(128, 256, [slow, told], [noisy])
    assert figures.processes == ("g++", "ptxas") and figures.triton_imported
    assert figures.load_gb_s == 10.0 and figures.one.imports_to_first_token_s.low == 1.0
    assert figures.one.parts == {"graphs": 0.5, "weights": 0.2}
    grid = start_grid(figures)
    assert "ran g++, ptxas, Triton was imported" in grid.title
    cells = {row[0]: row[1:] for row in grid.rows}
    assert cells["GB/s"] == ("10.0", "5.0")
    assert cells["capturing graphs, s"] == ("0.50", "0.50") and cells["graphs"] == ("11", "11")


def test_a_watched_start_hears_what_it_starts(tmp_path: Path) -> None:
    """A runtime that runs a program: its name is told, and the answer is passed on."""
    package = tmp_path / "kernelgen_runtime"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cli.py").write_text(
        "import json, subprocess\n"
        "def main(arguments):\n"
        "    subprocess.run(['/bin/true'], check=True)\n"
        "    print('words')\n"
        "    print(json.dumps({'said': arguments}))\n"
        "    return 0\n"
    )
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    command = [sys.executable, "-m", "kernelgen.bench.started", "run", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    told = json.loads(done.stdout)
    assert told["said"] == ["run", "x"] and set(told["processes"]) == {"true"}
    assert told["triton_imported"] is False


def test_what_a_build_says_of_itself(small: Path) -> None:
    built = read_built(small, "cpu")
    assert built.matrices["layers.1.mlp.down.weight"] == (48, 80)
    assert built.heads[0] == Heads(3, 1, 16, None) and len(built.layers) == 2
    assert built.layers[0].token_bytes == 2 * 1 * 16 * 4
    assert built.decode_size(5) == 8 and built.decode_plan(5) is not None
    (wheel,) = small.parent.glob("*.whl")
    assert read_built(wheel, "cpu") == built
    with pytest.raises(UsageError, match="build the model again"):
        read_built(small, "sm_90:h200")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--batch", "300"], "--batch: is 300, beyond the largest decode plan"),
        (["--prompt", "100", "--tokens", "64"], "sequences of 164 tokens"),
        (["--tokens", "2"], "at least 1 and 8"),
        (["--baseline", "nothing"], "--baseline: is 'nothing'"),
        (["--target", "cpu"], "--target: is for models"),
        (["--device", "cuda"], "no library for a GPU"),
        (["--batch", "x"], "whole numbers"),
    ],
)
def test_refusals(
    small: Path, options: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fitting = ["--prompt", "8", "--tokens", "8"]
    code, out, err = call(capsys, str(small), *fitting, *options)
    assert code in (2, 3) and not out
    assert part in err and len(err.strip().splitlines()) == 1


def test_a_gpu_build_without_a_gpu(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((small / "manifest.json").read_text())
    data["targets"][0]["target"] = "sm_90:h200"
    data["targets"][0]["libraries"] = [{"isa": "sm_90", "path": "lib/x.so", "measured": False}]
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    code, _, err = call(capsys, str(tmp_path), "--tokens", "8", "--prompt", "8")
    assert code == 4 and "needs sm_90, found no NVIDIA GPU" in err


# --- the part of a run that a GPU is needed for, with what it would give


def test_a_profiled_case_becomes_rows(gpu: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    view = gpu.plans["decode", BATCH].view
    names = ["prepare", *(k.name.replace(".", "_") for k in view.kernels)]
    made = records_of(names, 14, ["prompt", names[-1]])
    step = StepFigures(Series.of([900, 910]), 930.0, Series.of([3.0]), 8e6 / 905)
    monkeypatch.setattr(run, "kernel_records", lambda work: made)
    monkeypatch.setattr(run, "measure", lambda llm, case, rounds: step)
    opened: Any = SimpleNamespace(gpu=object(), built=gpu, clocks=lambda: Clocks(1980, 3201, 1980))
    llm = SimpleNamespace(manifest=SimpleNamespace(vocab=gpu.vocab))
    case = Case(BATCH, 128, 64)
    options = Options(Path("build"), (case,), ("kernelgen", "bench", "build"))
    report, launches = run._case(llm, opened, options, case, 4250.0)
    assert report.kernels is not None and report.kernels.per_layer == len(view.kernels) // 30
    assert len(launches) == report.kernels.launches == len(view.kernels) + 1
    setup = Setup(
        *("build", MODEL, gpu.target, "sm_90", "bfloat16", "random", None),
        *(machine("NVIDIA H200", "580.1", 4800.0), 1.2, 4250.0, "kernelgen bench build"),
    )
    whole = Report(setup, (report,))
    rows = list(whole.rows())
    kernels = [row for row in rows if row["kind"] == "kernel"]
    assert sum(row["launches"] for row in kernels) == len(launches)
    row = next(row for row in kernels if row["bytes"])
    assert row["share_of_spec"] == pytest.approx(row["gb_s"] / 4800, abs=1e-4)
    assert row["share_of_ceiling"] == pytest.approx(row["gb_s"] / 4250, abs=1e-4)
    assert row["clocks"]["sm_mhz"] == 1980 and row["driver"] == "580.1"
    text = markdown(whole)
    assert "Kernels of a step, batch 8, 128 in, 64 out, 136 entries" in text
    assert json.loads(json.dumps(whole.to_json()))["rows"]


def test_a_failed_request_is_no_measurement() -> None:
    ended = [SimpleNamespace(finish_reason="length", error="")]
    check_none_failed(ended)
    failed = SimpleNamespace(finish_reason="error", error="logits are NaN after 3 tokens")
    with pytest.raises(CheckFailed, match=r"1 of 2 requests ended with an error.*NaN after 3"):
        check_none_failed([*ended, failed])
