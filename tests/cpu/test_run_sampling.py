"""Sampling parameters on the command line of `run`: each reaches the request, mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelgen_runtime.cli import build_parser, main
from kernelgen_runtime.commands.sampling_options import sampling_of
from kernelgen_runtime.sample.params import SamplingParams
from kernelgen_runtime.text.settings import GenerationDefaults

from tests.model_builds import build, small_config

GIVEN = {
    "--max-tokens": ("9", {"max_tokens": 9}),
    "--min-tokens": ("2", {"min_tokens": 2}),
    "--temperature": ("0.5", {"temperature": 0.5}),
    "--top-k": ("7", {"top_k": 7}),
    "--top-p": ("0.7", {"top_p": 0.7}),
    "--min-p": ("0.1", {"min_p": 0.1}),
    "--presence-penalty": ("-1", {"presence_penalty": -1.0}),
    "--frequency-penalty": ("0.5", {"frequency_penalty": 0.5}),
    "--repetition-penalty": ("1.2", {"repetition_penalty": 1.2}),
    "--logit-bias": ("3:1.5,4:-100", {"logit_bias": {3: 1.5, 4: -100.0}}),
    "--allowed-token-ids": ("3,4,5", {"allowed_token_ids": (3, 4, 5)}),
    "--bad-word": ("no", {"bad_words": ("no",)}),
    "--seed": ("-5", {"seed": -5}),
    "--stop": ("end", {"stop": ("end",)}),
    "--stop-token-ids": ("8,9", {"stop_token_ids": (8, 9)}),
    "--logprobs": ("3", {"logprobs": 3}),
    "--prompt-logprobs": ("1", {"prompt_logprobs": 1}),
}
LINE = ("run", "model", "--weights", "random", "--prompt", "x")


@pytest.mark.row("B-08")
def test_every_option_reaches_the_request() -> None:
    words = [word for name, (text, _) in GIVEN.items() for word in (name, text)]
    options = build_parser().parse_args([*LINE, *words, "--ignore-eos"])
    meant = {name: value for _, of in GIVEN.values() for name, value in of.items()}
    assert sampling_of(options, GenerationDefaults()) == SamplingParams(**meant, ignore_eos=True)


def test_the_checkpoint_decides_what_nobody_says() -> None:
    options = build_parser().parse_args([*LINE, "--top-k", "4"])
    made = sampling_of(options, GenerationDefaults(temperature=0.6, top_k=20, top_p=0.95))
    assert (made.temperature, made.top_k, made.top_p) == (0.6, 4, 0.95)
    assert not made.changes_logits and made.logprobs is None


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("--logit-bias", "3", "ID:NUMBER"),
        ("--logit-bias", "x:1", "ID:NUMBER"),
        ("--allowed-token-ids", "1,,2", "token ids"),
        ("--stop-token-ids", "a", "token ids"),
        ("--min-p", "much", "invalid float"),
        ("--logprobs", "3", "--json alone"),
        ("--prompt-logprobs", "0", "--json alone"),
    ],
)
def test_mistakes_are_one_line(
    name: str, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = 0
    try:
        code = main([*LINE, name, text])
    except SystemExit as stop:
        code = int(stop.code or 0)
    told = capsys.readouterr().err
    assert code and words in told and told.count("\n") == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(small_config(1), tmp_path_factory.mktemp("small"))


def test_log_probabilities_are_in_the_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--logprobs", "2", "--prompt-logprobs", "1", "--max-tokens", "4", "--ignore-eos")
    line = ("run", folder, "--weights", "random:1", "--device", "cpu", "--threads", "1")
    ids = ("--prompt-ids", "5,6,7", "--json", "--bandwidth-seconds", "0")
    assert main([str(word) for word in (*line, *ids, *asked)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["token"] for one in answer["logprobs"]] == answer["token_ids"]
    assert all(len(one["likeliest"]) == 2 for one in answer["logprobs"])
    first, *others = answer["prompt_logprobs"]
    assert first is None and [one["token"] for one in others] == [6, 7]


def test_out_of_range_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("run", folder, "--weights", "random:1", "--device", "cpu", "--prompt-ids", "5")
    wrong = ("--min-p", "2", "--presence-penalty", "9", "--max-tokens", "0")
    assert main([str(word) for word in (*line, *wrong)])
    told = capsys.readouterr().err
    for name in ("min_p: must be from 0 to 1", "presence_penalty: must be from -2 to 2"):
        assert name in told
    assert "max_tokens: must be 1 or more" in told
