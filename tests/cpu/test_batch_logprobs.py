"""Log-probabilities in the words of the OpenAI formats."""

from __future__ import annotations

from typing import Any

import pytest
from kernelgen_runtime.batch.lines import CHAT, COMPLETIONS
from kernelgen_runtime.batch.logprobs import LEAST, chat_logprobs, completion_logprobs
from kernelgen_runtime.chat.parameters import sampling_params
from kernelgen_runtime.errors import RequestError
from kernelgen_runtime.sample.reference import Likelihood
from kernelgen_runtime.text.settings import GenerationDefaults

TOLD = [
    Likelihood(3, -0.5, 1, ((3, -0.5), (4, -1.5))),
    Likelihood(9, float("-inf"), 7, ((3, -0.1),)),
]


def test_of_a_chat() -> None:
    first, second = chat_logprobs(TOLD, lambda token: f"t{token}é")["content"]
    assert first["token"] == "t3é" and first["bytes"] == list("t3é".encode())
    assert [(e["token"], e["logprob"]) for e in first["top_logprobs"]] == [
        ("t3é", -0.5),
        ("t4é", -1.5),
    ]
    assert second["logprob"] == LEAST


def test_of_a_completion() -> None:
    told = completion_logprobs(TOLD, lambda token: "ab" * token)
    assert told["text_offset"] == [0, 6] and told["token_logprobs"] == [-0.5, LEAST]
    assert told["top_logprobs"][0] == {"ababab": -0.5, "abababab": -1.5}
    assert completion_logprobs([], str)["text_offset"] == []


@pytest.mark.parametrize(
    ("url", "body", "asked"),
    [
        (COMPLETIONS, {"logprobs": 3}, 3),
        (COMPLETIONS, {}, None),
        (CHAT, {"logprobs": True, "top_logprobs": 5}, 5),
        (CHAT, {"logprobs": True}, 0),
        (CHAT, {"logprobs": False, "top_logprobs": 5}, None),
    ],
)
def test_what_a_body_asks(url: str, body: dict[str, Any], asked: int | None) -> None:
    body = body | {"logit_bias": {"5": -1}}
    params = sampling_params(GenerationDefaults(), body, url == CHAT)
    assert params.logprobs == asked and params.logit_bias == {5: -1}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"logprobs": 3}, "logprobs: must be true or false"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs: must be"),
        ({"logit_bias": {"x": 1}}, "logit_bias: keys must be token ids, one is 'x'"),
    ],
)
def test_what_it_may_not_ask(body: dict[str, Any], word: str) -> None:
    with pytest.raises(RequestError, match=word):
        sampling_params(GenerationDefaults(), body, is_chat=True)
