"""The server of a real model, out of its wheel: what only such a build can do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_toys import ServerProcess

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(
    smollm2: Path,
    smollm2_builds: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("model")
    (wheel,) = smollm2_builds("bfloat16").parent.glob("*.whl")
    server = ServerProcess(wheel, smollm2, folder, "--max-model-len", 512)
    try:
        server.wait_ready()
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    finally:
        server.close()


@pytest.mark.row("B-11")
def test_it_answers_with_the_checkpoints_own_template_and_ends(client: Any) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION)
    choice = answer.choices[0]
    assert "Paris" in choice.message.content and choice.finish_reason == "stop"
    stream = client.chat.completions.create(model="smollm2", messages=QUESTION, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == choice.message.content


def test_logprobs_have_both_shapes(client: Any) -> None:
    prompt = "The capital of France is"
    options = {"model": "smollm2", "prompt": prompt, "max_tokens": 3, "logprobs": 2}
    answer = client.completions.create(**options, temperature=0, echo=True)
    told, text = answer.choices[0].logprobs, answer.choices[0].text
    assert "".join(told.tokens) == text and text.startswith(prompt)
    assert told.token_logprobs[0] is None and max(told.token_logprobs[1:]) <= 0
    assert [
        text[at : at + len(t)] for at, t in zip(told.text_offset, told.tokens, strict=True)
    ] == told.tokens
    chunks = client.completions.create(**options, temperature=0, stream=True)
    streamed = [
        p for c in chunks if c.choices[0].logprobs for p in c.choices[0].logprobs.token_logprobs
    ]
    assert streamed == pytest.approx(told.token_logprobs[-3:])
    chat = {"model": "smollm2", "messages": QUESTION, "max_tokens": 4, "temperature": 0}
    whole = client.chat.completions.create(**chat, logprobs=True, top_logprobs=3).choices[0]
    content = whole.logprobs.content
    assert "".join(part.token for part in content) == whole.message.content
    for part in content:
        assert len(part.top_logprobs) == 3 and part.logprob == part.top_logprobs[0].logprob
        assert bytes(part.bytes).decode() == part.token
    parts = client.chat.completions.create(**chat, logprobs=True, top_logprobs=3, stream=True)
    told = [p for c in parts if c.choices[0].logprobs for p in c.choices[0].logprobs.content]
    assert [part.logprob for part in told] == pytest.approx([part.logprob for part in content])


def test_answers_follow_a_schema_and_call_tools(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, response_format=form, max_tokens=80
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"name", "age"}
    function = {"name": "weather", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    chosen = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, tools=tools, tool_choice=chosen, max_tokens=120
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather" and "age" in json.loads(call.function.arguments)
    stream = client.chat.completions.create(
        model="smollm2", messages=QUESTION, tools=tools, tool_choice=chosen, max_tokens=120,
        stream=True,
    )  # fmt: skip
    deltas = [chunk.choices[0].delta for chunk in stream]
    assert deltas[0].role == "assistant"
    parts = [part for delta in deltas for part in delta.tool_calls or ()]
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    assert {part.index for part in parts} == {0} and parts[0].function.name == "weather"
    with pytest.raises(openai.BadRequestError, match="structured output"):
        client.completions.create(model="smollm2", prompt="x", extra_body={"guided_regex": "(("})
