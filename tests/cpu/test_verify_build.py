"""`verify` of a build as it is: what is checked, what is left out, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reference_library import gpu_build
from verify_build import build, small

from kernelgen.cli import main
from kernelgen.verify import model_checks, supervisor
from kernelgen.verify.built import Built, read_build
from kernelgen.verify.checks import Check
from kernelgen.verify.model_cases import Case
from kernelgen.verify.model_checks import ModelUnderTest, check_model

FINE = Check("embed", "values", 3, 0.0, 1.0, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("built") / "b", small(), "float32")


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in ("verify", *arguments)])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out + err


def test_a_build_is_checked_without_being_built(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Built] = []

    def check(built: Built, **_: Any) -> tuple[Check, ...]:
        seen.append(built)
        return (FINE,)

    monkeypatch.setattr(supervisor, "check_kernels", check)
    code, text = called(capsys, folder)
    assert code == 0 and seen[0].folder == folder and not seen[0].on_gpu
    assert " cases of small (float32): all within bounds" in text
    assert "the model itself was not run: there are no weights given" in text


def test_what_cannot_be_checked_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = gpu_build(tmp_path / "g", small(), "bfloat16")
    (tmp_path / "empty").mkdir()
    for arguments, text in (
        ((gpu,), "was not built for the CPU (allowed: sm_90:h200)"),
        ((folder, "--target", "sm_90"), "was not built for sm_90"),
        ((folder, "--reference", tmp_path / "c.npz"), "recorded cases need weights"),
        ((tmp_path / "empty", "--weights", tmp_path), "--weights belongs to a build"),
    ):
        code, told = called(capsys, *arguments)
        assert code == 2 and text in told, told
    import torch

    if not torch.cuda.is_available():
        code, told = called(capsys, gpu, "--target", "sm_90")
        assert code == 4 and "finds no GPU here" in told


def test_on_a_gpu_chunks_lie_within_the_bound_and_graphs_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    built = read_build(gpu_build(tmp_path / "g", small(), "float32"), "sm_90")
    vocab = built.manifest["model"]["vocab"]
    rng = np.random.default_rng(0)
    prefill, decode = (rng.standard_normal((n, vocab)).astype(np.float32) for n in (5, 2))
    ids = np.arange(5), decode.argmax(1)
    case = Case("0", "p0", ids[0], prefill, ids[1], decode, np.zeros(2, np.float32), None)

    def run(spread: float, eager_differs: float) -> tuple[dict[str, Check], list[Any]]:
        calls: list[tuple[str, ...]] = []

        def logits(self: ModelUnderTest, prompts: Path, *options: str) -> dict[str, Any]:
            calls.append(options)
            both = np.concatenate([prefill, decode])
            factor = 1 + spread * len(calls) if "--batch" not in options else 1 + spread
            factor += eager_differs * ("--eager" in options)
            keys = ["0", "0-2"] if "--batch" in options else ["0"]
            return {k: (both * factor).astype(np.float32)[: 5 if "-" in k else 7] for k in keys}

        monkeypatch.setattr(ModelUnderTest, "logits", logits)
        checks = check_model(ModelUnderTest(built, tmp_path), [case])
        return {c.what: c for c in checks}, calls

    good, calls = run(1e-6, 0.0)
    assert all(c.passed for c in good.values()), good
    assert calls == [
        (),
        *(("--chunk", str(n)) for n in model_checks.GPU_CHUNKS),
        ("--batch",),
        ("--batch", "--eager"),
    ]
    assert 0 < good["chunks of 1"].error < good["chunks of 1"].bound
    assert good["without graphs"].bound == 0
    far, _ = run(1e-3, 0.0)
    assert not far["chunks of 16"].passed and not far["logits"].passed
    eager, _ = run(0.0, 1e-6)
    assert [what for what, c in eager.items() if not c.passed] == ["without graphs"]
