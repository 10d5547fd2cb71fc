"""The command line against a compiled stub: text, figures, exit codes, and a vendored runtime."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kernelgen_runtime
import numpy as np
import pytest
import torch
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.open import open_artifact
from kernelgen_runtime.cli import main
from kernelgen_runtime.device.found import Found, Gpu
from kernelgen_runtime.errors import ArtifactError, LaunchError
from kernelgen_runtime.launch.library import CompiledLibrary
from runtime_fakes import PEAK_BYTES, VOCAB, environment, manifest_json, on_gpu
from runtime_stub import compile_stub, following, write_artifact, write_cases, write_checkpoint

RUN = ("run", "x", "--weights", "w", "--prompt", "a")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifact(tmp_path_factory.mktemp("built") / "toy")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("weights") / "toy")


def words(ids: list[int]) -> str:
    return "".join(f" w{i}" for i in ids)


def run(*options: Any) -> int:
    return main([str(option) for option in options])


def test_compiled_library_answers(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELGEN_ISA", "avx2")
    artifact = open_artifact(built)
    library = CompiledLibrary(artifact, artifact.manifests[0])
    library.load(0), library.set_threads(1)
    assert library.isa == "avx2" and library.read_bandwidth(0.1) == 12.5
    with pytest.raises(LaunchError, match="bind REFUSED: REFUSED: wrong size"):
        library.bind("REFUSED", torch.zeros(1))


def test_two_models_of_one_file_do_not_share_buffers(built: Path) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.0)
    one, two = (LLM(built, "random", threads=1) for _ in range(2))
    streams = [one.stream([5, 6], params), two.stream([7], params), one.stream([8], params)]
    for stream in streams:
        stream.begin()
    while not all(stream.is_finished for stream in streams):
        one.engine.step(), two.engine.step()
    wanted = [following(ids, 12) for ids in ([5, 6], [7], [8])]
    assert [list(stream.output().token_ids) for stream in streams] == wanted


def test_library_of_another_abi(tmp_path: Path) -> None:
    values = manifest_json()
    compile_stub(tmp_path / "lib" / "cpu_avx2.so", values, abi=2)
    (tmp_path / "manifest.json").write_text(json.dumps(values))
    artifact = open_artifact(tmp_path)
    with pytest.raises(ArtifactError, match=r"abi and isa are \(2, 'avx2'\)"):
        CompiledLibrary(artifact, artifact.manifests[0])


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"not a library"])
def test_library_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "cpu_avx2.so").write_bytes(content)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest_json()))
    artifact = open_artifact(tmp_path)
    with pytest.raises(ArtifactError, match="not a library of kernelgen"):
        CompiledLibrary(artifact, artifact.manifests[0])


def test_run_prints_text_and_figures(
    built: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", built, "--weights", weights, "--prompt", "w5 w6", "--max-tokens", 8) == 0
    text, blank, *figures = capsys.readouterr().out.splitlines()
    # The chat template puts w1 before and w2 after; a word-level decoder joins with spaces.
    assert text == words(following([1, 5, 6, 2], 8)) and blank == ""
    assert len(figures) == 4 and figures[0].startswith("first token ")
    assert "prefill 4 tokens" in figures[1] and "decode 7 tokens" in figures[2]
    assert figures[3].endswith("% of 12.5 measured")


def test_run_json(built: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--raw", "--prompt", "w5 w6", "--max-tokens", 5, "--json", "--threads", 1)
    assert run("run", built, "--weights", weights, *options) == 0
    result = json.loads(capsys.readouterr().out)
    wanted = following([5, 6], 5)
    assert result["token_ids"] == wanted and result["text"] == words(wanted)
    assert result["finish_reason"] == "length" and result["threads"] == 1
    assert result["prompt_tokens"] == 2 and result["decode_steps"] == 4
    process, imports = (
        result[f"first_token_seconds_from_{clock}"] for clock in ("process_start", "imports_done")
    )
    assert 0 < imports < process
    # 4 panels of 3 × 32 × 2 bfloat16, 6 float32, and up to 6 tokens of 8 bytes in both groups.
    assert 4 * 3 * 32 * 2 * 2 + 24 < result["decode_bytes_per_step"] < 1560 + 6 * 16 + 1
    assert result["read_bandwidth_gb_per_second"] == 12.5


def test_an_automatic_length_is_what_the_cache_holds(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A length that does not fit is refused with the longest that does: `auto` takes that one."""

    def tried(length: object, prompt: int) -> tuple[int, str, str]:
        ids = ",".join(["5"] * prompt)
        options = ("--prompt-ids", ids, "--max-tokens", 1, "--kv-cache-memory-bytes", 128 * 12)
        options += ("--max-num-batched-tokens", 16, "--bandwidth-seconds", 0)
        code = run("run", built, "--weights", "random", "--max-model-len", length, *options)
        return code, *capsys.readouterr()

    code, _, error = tried(200, 3)
    (longest,) = map(int, re.findall(r"the longest that fits is --max-model-len (\d+)", error))
    assert code == 2 and 16 < longest < 200
    assert tried("auto", longest - 1)[0] == 0
    code, _, error = tried("auto", longest)
    assert code == 2 and f"leaves no room in max_model_len {longest}" in error
    assert tried(longest + 1, 3)[0] == 2 and tried(longest, 3)[0] == 0


def test_stop_string_and_made_up_weights(
    built: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = following([5, 6], 30)
    stop = f" w{ids[4]} "
    options = ("--raw", "--prompt", "w5 w6", "--max-tokens", 30, "--json", "--stop", stop)
    assert run("run", built, "--weights", weights, *options) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["stop_reason"] == stop and result["text"] == words(ids[:4])
    assert run("run", built, "--weights", "random:1", "--prompt-ids", "5,6", "--max-tokens", 3) == 0
    assert capsys.readouterr().out.splitlines()[0] == " ".join(map(str, ids[:3]))


def test_interactive(
    built: Path, weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("w5\n\nw6\n"))
    assert run("run", built, "--weights", weights, "--interactive", "--max-tokens", 2) == 0
    first = following([1, 5, 2], 2)
    second = following([1, 5, 1, *first, 1, 6, 2], 2)
    assert capsys.readouterr().out.splitlines() == [words(first), words(second)]


@pytest.mark.parametrize("extra", [(), ("--batch",), ("--chunk", 7), ("--chunk", 7, "--batch")])
def test_logits(built: Path, weights: Path, tmp_path: Path, extra: tuple[Any, ...]) -> None:
    cases = write_cases(tmp_path / "cases.npz")
    files = ("--cases", tmp_path / "cases.npz", "--out", tmp_path / "out.npz")
    assert run("logits", built, "--weights", weights, *files, *extra) == 0
    with np.load(tmp_path / "out.npz") as out:
        assert sorted(out.files) == [
            f"{i}/{what}_logits" for i in (0, 1) for what in ("decode", "prefill")
        ]
        for i in (0, 1):
            ids = np.concatenate([cases[f"{i}/prompt_ids"], cases[f"{i}/fed_ids"]])
            best = np.concatenate([out[f"{i}/prefill_logits"], out[f"{i}/decode_logits"]]).argmax(1)
            assert best.tolist() == [(31 * t + p) % VOCAB for p, t in enumerate(ids.tolist())]
            assert out[f"{i}/prefill_logits"].dtype == np.float32
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (("run", "{tmp}/x", "--weights", "random", "--prompt", "a"), 2, "no such file"),
        (("run", "{built}", "--weights", "{tmp}/x", "--prompt", "a"), 2, "no such checkpoint"),
        (("run", "{built}", "--weights", "random", "--prompt-ids", "1,x"), 2, "--prompt-ids"),
        (
            ("run", "{built}", "--weights", "random", "--prompt", "a", "--device", "cuda"),
            3,
            "no library for a GPU: it was built for cpu",
        ),
        (
            ("run", "{built}", "--weights", "random", "--prompt", "a", "--device", "tpu"),
            2,
            "--device must be auto, cpu or cuda[:i], is 'tpu'",
        ),
        (("run", "{built}", "--weights", "random", "--prompt-ids", "97"), 2, "is not a token id"),
        (("run", "{built}", "--weights", "random", "--interactive"), 2, "no tokenizer"),
        (
            ("run", "{built}", "--weights", "random", "--prompt", "a", "--top-p", "7"),
            2,
            "top_p: must be above 0",
        ),
        (
            ("run", "{built}", "--weights", "random", "--prompt", "a", "--threads", "0"),
            2,
            "threads must be from 1",
        ),
        (
            ("logits", "{built}", "--weights", "random", "--cases", "{tmp}/x", "--out", "{tmp}/y"),
            2,
            "not a file of cases",
        ),
    ],
)
def test_one_line_and_a_code_for_every_mistake(
    built: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    code: int,
    word: str,
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert run(*(text.format(tmp=tmp_path, built=built) for text in options)) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ") and word in error and "Traceback" not in error
    assert error.count("\n") <= 3


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("run", "x", "--weights", "w"), "--prompt"),
        (("run", "x", "--prompt", "a"), "--weights"),
        (("run", "x", "--weights", "w", "--prompt", "a", "--max-tokens", "many"), "'many'"),
        ((*RUN, "--max-model-len", "most"), "must be a whole number or auto, is 'most'"),
        ((*RUN, "--prefix-cache-retention-interval", "1k"), "must be a whole number or none"),
        ((*RUN, "--gpu-memory-utilization", "half"), "must be above 0 and at most 1, is 'half'"),
        (("serve", "x", "--weights", "w", "--max-model-len", "most"), "1k or 1K, or auto, is"),
        ((), "COMMAND"),
    ],
)
def test_wrong_options_are_one_line(
    options: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and word in error and error.endswith(" --help`\n")
    assert error.startswith("error: ") and error.count("\n") == 1


def test_a_gpu_artifact_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_on(found: Found) -> tuple[int, str]:
        monkeypatch.setattr("kernelgen_runtime.device.choose.find_gpus", lambda: found)
        code = run("run", tmp_path, "--weights", "random", "--prompt", "a")
        return code, capsys.readouterr().err

    (tmp_path / "manifest.json").write_text(json.dumps(on_gpu(manifest_json())))
    none = Found((), "Found no NVIDIA driver on your system.")
    old = "error: needs sm_90, found no NVIDIA GPU (Found no NVIDIA driver on your system.)\n"
    assert run_on(none) == (4, old)
    other = Found((Gpu(0, "NVIDIA A10", 86),))
    assert run_on(other) == (3, "error: needs sm_90, found sm_86 (NVIDIA A10)\n")


@pytest.mark.parametrize(
    "arrays",
    [
        {"a/fed_ids": np.array([1])},
        {"a/prompt_ids": np.array([[1]])},
        {"a/prompt_ids": np.array([1.5])},
        {"a/prompt_ids": np.array([1000])},
        {"a/prompt_ids": np.array([], np.int64)},
        {"a/prompt_ids": np.array([object()])},
    ],
)
def test_wrong_cases(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: dict[str, np.ndarray]
) -> None:
    np.savez(tmp_path / "cases.npz", **arrays)
    files = ("--cases", tmp_path / "cases.npz", "--out", tmp_path / "out.npz")
    assert run("logits", built, "--weights", "random", *files) == 2
    assert not (tmp_path / "out.npz").exists() and "error: " in capsys.readouterr().err


def test_a_mistake_of_ours_is_one_line_too(
    built: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelgen_runtime.launch.traffic.weight_bytes", lambda _: 1 // 0)
    options = ("run", built, "--weights", "random", "--prompt", "a")
    assert run(*options) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ZeroDivisionError") and error.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        run(*options, "--debug")


def python(*command: Any, cwd: Path | None = None, env: Any = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, cwd=cwd, env=env
    )


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    start = time.perf_counter()
    result = python("-X", "importtime", "-m", "kernelgen_runtime", "--help", env=environment())
    assert result.returncode == 0 and "logits" in result.stdout
    heavy = ("torch", "numpy", "tvm_ffi", "jinja2", "tokenizers", "rich")
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert not loaded & set(heavy)
    assert time.perf_counter() - start < 1.0, "0.05 s alone; the bound leaves room for other work"


def test_runtime_works_under_another_name(built: Path, weights: Path, tmp_path: Path) -> None:
    """As a serving wheel carries it: no import may name the package."""
    package = tmp_path / "site" / "toy_wheel"
    shutil.copytree(built, package)
    runtime = Path(str(kernelgen_runtime.__file__)).parent
    shutil.copytree(runtime, package / "_runtime", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").write_text("")
    code = (
        "import sys; from toy_wheel._runtime.cli import main;"
        "code = main(['run', '--weights', sys.argv[1], '--raw', '--prompt', 'w5 w6',"
        " '--max-tokens', '3'], artifact=sys.argv[2]);"
        "assert not any(n.startswith('kernelgen') for n in sys.modules); sys.exit(code)"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = python(
        "-P", "-c", code, weights, package, env=env | {"PYTHONPATH": str(tmp_path / "site")}
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == words(following([5, 6], 3))


def test_memory_beside_weights_and_cache(built: Path, weights: Path) -> None:
    """Imports, tokenizer and all: at most 400 MB."""
    code = (
        PEAK_BYTES + "import sys; from kernelgen_runtime.cli import main;"
        "code = main(sys.argv[1:]); print(peak()); sys.exit(code)"
    )
    options = ("run", built, "--weights", weights, "--prompt", "w5", "--max-tokens", "20")
    result = python("-c", code, *options, env=environment())
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.splitlines()[-1]) < 400_000_000
