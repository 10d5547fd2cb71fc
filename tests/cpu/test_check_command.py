"""`check`: what follows a step beside its law; a library that leaves something out is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelgen_runtime import LLM
from kernelgen_runtime.cli import main
from kernelgen_runtime.commands.check import MARK, compared, laws

from kernelgen.verify.built import read_build
from kernelgen.verify.following import check_following
from tests.model_builds import build, small_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(small_config(1), tmp_path_factory.mktemp("small"))


@pytest.mark.row("B-08")
def test_all_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("check", folder, "--weights", "random:3", "--device", "cpu", "--threads", "1")
    assert main([str(word) for word in line]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["what"] for one in told} == {"refine", "keep_masks", "logprobs"}
    assert all(one["cases"] > 20 and one["wrong"] == 0 for one in told)


def test_verify_takes_its_answers(folder: Path) -> None:
    checks = check_following(read_build(folder, "cpu"), None)
    assert [check.what for check in checks] == ["refine", "keep_masks", "logprobs"]
    assert all(check.passed for check in checks)


@pytest.mark.parametrize("left_out", ["refine", "keep_masks", "logprobs"])
def test_what_a_library_leaves_out_is_found(folder: Path, left_out: str) -> None:
    llm = LLM(
        folder,
        "random:3",
        device="cpu",
        threads=1,
        max_num_seqs=len(laws(96)),
        max_model_len=64,
        watermark=MARK,
    )
    sampled = llm.program._runner._bound["sampled"]  # type: ignore[attr-defined]
    # Rows with rules have no id before `refine`: a careless one gives the same to all.
    careless = {"refine": lambda plan, args: sampled.zero_()}
    setattr(llm.library, left_out, careless.get(left_out, lambda plan, args: None))
    tallies = compared(llm)
    assert tallies[left_out].wrong and tallies[left_out].first
