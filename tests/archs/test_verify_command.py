"""`kernelgen verify` from a checkpoint to a verdict: right weights pass, others are told."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from conftest import HERE, folders, subject_of
from model_builds import this_isa

from kernelgen.cli import main, verification
from kernelgen.verify import model_checks

pytest.importorskip("transformers")


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One architecture and this machine's library: the others are run by other tests."""
    import torch
    from make_tiny import make
    from safetensors.torch import load_file, save_file

    folder = [f for f in folders() if f.parent != HERE][-1]
    make(subject_of(folder).config, tmp_path)
    quick = functools.partial(verification.build_model, isas=(this_isa(),))
    monkeypatch.setattr(verification, "build_model", quick)
    monkeypatch.setattr(model_checks, "CHUNKS", (7,))  # each is a process
    code, out, err = call(capsys, "verify", str(tmp_path))
    assert code == 0, out
    assert "MISS" not in out and "missed" not in err

    weights = load_file(tmp_path / "model.safetensors")
    name = next(n for n in weights if n.endswith("mlp.down_proj.weight"))
    weights[name][0] = -weights[name][0]  # one of 128 rows of one matrix
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.isfinite(weights[name]).all()
    code, out, err = call(capsys, "verify", str(tmp_path))
    assert code == 1
    missed = [line for line in out.splitlines() if "MISS" in line]
    cases = re.compile(r"^ *MISS +p\d+: ")  # no kernel is wrong, only what the model says
    assert missed and all(cases.match(line) for line in missed), out
