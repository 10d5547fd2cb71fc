"""`verify` of a build that is for another target than asked says how to ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelgen.cli.app import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and stderr."""
    with pytest.raises(SystemExit) as caught:
        main(["verify", *arguments])
    return int(str(caught.value.code)), capsys.readouterr().err


@pytest.fixture
def gpu_build(tmp_path: Path) -> Path:
    """As much of a build for a GPU as is read before its target is looked up."""
    targets = [{"target": "sm_90:h200"}, {"target": "sm_100:b200"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"targets": targets}))
    return tmp_path


def test_the_target_that_a_build_has_is_named(
    gpu_build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = run(capsys, str(gpu_build))
    assert code == 2 and err.count("\n") == 1
    assert "was not built for the CPU (allowed: sm_90:h200, sm_100:b200)" in err
    assert "`--target sm_90`" in err


@pytest.mark.parametrize("option", [("--dtype", "bfloat16"), ("--fusion", "off")])
def test_options_of_checkpoints_are_refused_for_builds(
    gpu_build: Path, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = run(capsys, str(gpu_build), "--target", "sm_90", *option)
    assert code == 2 and f"{option[0]}: is for checkpoints" in err
