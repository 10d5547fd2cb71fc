"""Chat requests as a whole: prompts, what binds an answer, how it is read; and every refusal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kernelgen_runtime.chat.front import ChatFront, Prepared
from kernelgen_runtime.chat.parameters import sampling_params
from kernelgen_runtime.chat.prompt import ChatOptions
from kernelgen_runtime.chat.wish import completion_structured
from kernelgen_runtime.cli import main
from kernelgen_runtime.errors import RequestError, TextError
from kernelgen_runtime.sample.structured import Structured
from kernelgen_runtime.text.settings import (
    GenerationDefaults,
    read_chat_templates,
    resolve_defaults,
)
from tiny_tokenizer import tokenizer_of, write_chat

# As many do it, in short: tools in front, thoughts that may be switched off.
TEMPLATE = (
    "{%- if tools %}{{ '<tools>' }}{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "{{ '</tools>\n<tool_call>\n' }}{% endif -%}"
    "{%- for d in documents or [] %}{{ '[' ~ d.title ~ ']' }}{% endfor -%}"
    "{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}"
    "{%- if m.reasoning_content %}{{ '<think>' ~ m.reasoning_content ~ '</think>' }}{% endif -%}"
    "{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}{{ '<tool_call>' ~ c.function.name ~ '|' }}"
    "{{ c.function.arguments | tojson }}{{ '</tool_call>' }}{% endfor -%}"
    "{{ '<|im_end|>\n' if not (loop.last and not add_generation_prompt) else '' }}{% endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}"
    "{%- endif %}{%- if reasoning_effort == 'high' %}{{ '<think>\n' }}{% endif %}{% endif -%}"
)
USER = {"messages": [{"role": "user", "content": "Hi"}]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture(scope="module")
def front(folder: Path) -> ChatFront:
    return front_of(folder)


def front_of(folder: Path, architecture: str = "toy", **options: Any) -> ChatFront:
    return ChatFront(folder, tokenizer_of(folder), architecture, ChatOptions(**options))


def prompt(front: ChatFront, **body: Any) -> str:
    return front.text(USER | body)


@pytest.mark.row("B-11")
def test_prompts(front: ChatFront, folder: Path) -> None:
    plain = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt(front) == plain
    ids = front.prepare(USER).prompt_ids
    assert ids == tuple(tokenizer_of(folder).encode(plain, add_special_tokens=False))
    assert prompt(front, add_generation_prompt=False) == "<|im_start|>user\nHi"
    assert prompt(front, chat_template_kwargs={"enable_thinking": False}).endswith("</think>\n\n")
    assert prompt(front, reasoning_effort="none").endswith("</think>\n\n")
    assert prompt(front, documents=[{"title": "T", "text": "x"}]).startswith("[T]")
    tools = prompt(front, tools=[WEATHER])
    assert tools.startswith(f"<tools>{json.dumps(WEATHER)}</tools>")
    assert prompt(front, tools=[WEATHER], tool_choice="none") == plain


@pytest.mark.row("B-11")
def test_messages(front: ChatFront) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": '{"a": [1]}'}}
    text = front.text(
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
                {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "12"},
            ]
        }
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        '<|im_start|>assistant\n<think>hm</think><tool_call>now|{"a": [1]}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.row("B-11")
def test_a_message_is_continued(front: ChatFront) -> None:
    messages = [*USER["messages"], {"role": "assistant", "content": "Well, "}]
    body = {"messages": messages, "continue_final_message": True}
    made = front.prepare(body)
    assert front.text(body).endswith("<|im_start|>assistant\nWell, ")
    assert made.continued == "Well, " and made.begins == "no"
    with pytest.raises(RequestError, match="add_generation_prompt"):
        front.text(body | {"add_generation_prompt": True})
    thinking = [*USER["messages"], {"role": "assistant", "content": "<think>so"}]
    assert front.prepare(body | {"messages": thinking}).begins == "open"


@pytest.mark.row("B-11")
def test_content_in_parts_where_a_template_wants_them(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}{% for c in m['content'] %}({{ c.text }}){% endfor %}{% endfor %}"
    )
    front = front_of(write_chat(tmp_path, source))
    assert prompt(front) == "(Hi)"
    whole = front_of(write_chat(tmp_path, source), content_format="string")
    assert prompt(whole) == "()()"  # two letters, neither of which has a text
    with pytest.raises(RequestError, match="content format"):
        front_of(tmp_path, content_format="parts")


@pytest.mark.row("B-11")
def test_templates_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ eos_token }}{{ messages[0].content }}")
    assert prompt(front_of(folder, chat_template=str(path))) == "<|im_end|>Hi"
    assert prompt(front_of(folder, chat_template="{{ 'x' }}")) == "x"
    with pytest.raises(TextError, match="no such file"):
        front_of(folder, chat_template="/nowhere/x.jinja")
    with pytest.raises(RequestError, match="--trust-request-chat-template"):
        front_of(folder).text(USER | {"chat_template": "{{ 'x' }}"})
    trusting = front_of(folder, trust_request_template=True)
    assert prompt(trusting, chat_template="{{ 'mine' }}") == "mine"
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]
    several = front_of(write_chat(tmp_path / "several", named))
    assert prompt(several) == "plain" and prompt(several, tools=[NOW]) == "1 tools"
    assert set(read_chat_templates(tmp_path / "several")) == {"default", "tool_use"}
    bare = write_chat(tmp_path / "bare", None)
    with pytest.raises(TextError, match="--chat-template"):
        front_of(bare).text(USER)
    assert not front_of(bare).has_template


@pytest.mark.row("B-11")
def test_hostile_templates_in_a_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    front = front_of(folder, trust_request_template=True)
    monkeypatch.setattr("kernelgen_runtime.text.sandbox.MAX_GROWTH", 64 << 20)
    hoard = (
        "{% set ns = namespace(l=[]) %}{% for i in range(9000) %}"
        "{% set ns.l = ns.l + ['x' * (1000000 + i)] %}{% endfor %}"
    )
    start = time.perf_counter()
    with pytest.raises(TextError, match="too much memory"):
        front.text(USER | {"chat_template": hoard})
    with pytest.raises(TextError, match="chat template"):
        front.text(USER | {"chat_template": "{{ ''.__class__.__mro__ }}"})
    assert time.perf_counter() - start < 5


def begins(front: ChatFront, **body: Any) -> str:
    return front.prepare(USER | body).begins


def test_where_thoughts_begin(front: ChatFront, folder: Path) -> None:
    assert front.reasoning_format == "think" and front.tool_format == "hermes"
    assert begins(front) == "maybe"
    assert begins(front, chat_template_kwargs={"enable_thinking": False}) == "no"
    assert begins(front, reasoning_effort="high") == "open"
    assert begins(front_of(folder, reasoning_parser="none")) == "no"
    silent = front.prepare(USER | {"include_reasoning": False}).parser()
    assert silent.push("<think>a</think>b").reasoning == ""
    assert silent.message() == {"role": "assistant", "content": "b"}


def structured(front: ChatFront, **body: Any) -> Structured | None:
    return front.prepare(USER | body).structured


def test_what_binds_an_answer(front: ChatFront) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wish = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert structured(front) is None
    assert structured(front, response_format={"type": "text"}) is None
    found = structured(front, response_format=wish, **off)
    assert found == Structured("json_schema", json.dumps(schema))
    after = structured(front, response_format={"type": "json_object"})
    assert after == Structured("json_object", "", "<think>", "</think>")
    opened = structured(front, structured_outputs={"regex": "a+"}, reasoning_effort="high")
    assert opened == Structured("regex", "a+", "", "</think>")
    assert structured(front, tools=[NOW]) is None
    made = front.prepare(USER | off | {"tools": [WEATHER, NOW], "tool_choice": "required"})
    assert made.uses_tools and not made.is_named_call and made.structured is not None
    asked = json.loads(made.structured.text)
    assert (asked["style"], asked["many"]) == ("hermes", True)
    assert [tool["name"] for tool in asked["tools"]] == ["weather", "now"]
    assert asked["tools"][0]["schema"]["additionalProperties"] is False
    named = {"type": "function", "function": {"name": "now"}}
    one = front.prepare(USER | {"tools": [WEATHER, NOW], "tool_choice": named})
    assert one.is_named_call and one.structured is not None
    assert [tool["name"] for tool in json.loads(one.structured.text)["tools"]] == ["now"]
    either = structured(front, tools=[NOW], response_format=wish)
    assert either is not None and json.loads(either.text)["instead"] == schema
    strict = {"type": "function", "function": {"name": "now", "strict": True}}
    loose = structured(front, tools=[WEATHER, strict])
    assert loose is not None and json.loads(loose.text)["free"] is True
    single = structured(front, tools=[NOW], tool_choice="required", parallel_tool_calls=False)
    assert single is not None and json.loads(single.text)["many"] is False


def test_of_completions() -> None:
    assert completion_structured({"guided_choice": ["a", "b"]}) == Structured(
        "choice", '["a", "b"]'
    )
    assert completion_structured({"guided_json": '{"type": "null"}'}) == Structured(
        "json_schema", '{"type": "null"}'
    )
    assert completion_structured({"structured_outputs": {"json_object": True}}) == Structured(
        "json_object"
    )
    assert completion_structured({"structured_outputs": {"json": None}}) is None
    for bond in (Structured("regex", "a", "<t>", "</t>"), Structured("choice", '["é"]')):
        assert Structured.from_json(json.loads(json.dumps(bond.to_json()))) == bond


DEEP: Any = {"type": "string"}
for _ in range(40):
    DEEP = {"type": "array", "items": DEEP}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages: must be a list"),
    ({"messages": [{"role": "user"}]}, r"messages\[0\].content: must be text"),
    ({"messages": [{"role": "user", "content": "x"}] * 5000}, "at most 4096"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only parts of type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, r"content\[0\].text"),
    ({"messages": [{"role": "user", "content": ["a"] * 2000}]}, "at most 1024 parts"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "belong to an assistant"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]},
        r"messages\[0\].tool_calls\[0\].function.name",
    ),
    (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
                }
            ]
        },
        "function.arguments: not JSON",
    ),
    ({"tools": {}}, "tools: must be a list"),
    ({"tools": [NOW] * 300}, "tools: at most 256"),
    ({"tools": [NOW, NOW]}, "two have one name"),
    ({"tools": [{"type": "retrieval"}]}, r"tools\[0\].type: must be function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, r"tools\[0\].function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        "must be a schema",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]},
        "nested more than 32 deep",
    ),
    ({"tool_choice": "required"}, "there are no tools"),
    ({"tools": [NOW], "tool_choice": "maybe"}, "tool_choice: must be none, auto"),
    (
        {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "there is no tool",
    ),
    ({"tools": [NOW], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: must be"),
    (
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        "response_format and guided_regex: only one",
    ),
    (
        {
            "tools": [NOW],
            "tool_choice": "required",
            "response_format": {"type": "json_object"},
        },
        "cannot have a response_format too",
    ),
    ({"tools": [NOW], "guided_regex": "a"}, "cannot go with a regex"),
    ({"guided_choice": []}, "choice: must be 1 to 4096 strings"),
    ({"guided_choice": ["x"] * 5000}, "choice: must be 1 to 4096 strings"),
    ({"guided_regex": "a" * 5000}, "regex: must have 1 to 4096"),
    ({"guided_json": DEEP}, "nested more than 32 deep"),
    ({"guided_json": {"enum": [f"v{i}" for i in range(5000)]}}, "4096 listed values"),
    ({"guided_json": {"enum": ["v" * 200_000]}}, "characters, at most"),
    (
        {"guided_json": {"properties": {f"p{i}": {} for i in range(600)}}},
        "600 properties",
    ),
    ({"chat_template_kwargs": {"messages": []}}, "'messages' cannot be given here"),
    ({"chat_template_kwargs": {"a b": 1}}, "'a b' cannot be given here"),
    ({"chat_template_kwargs": {f"a{i}": 1 for i in range(100)}}, "at most 64"),
    ({"documents": ["x"]}, "documents: must be a list of objects"),
    ({"documents": [{}] * 2000}, "documents: at most 1024"),
    ({"reasoning_effort": 3}, "reasoning_effort"),
    ({"continue_final_message": "yes"}, "continue_final_message: must be true or false"),
]


@pytest.mark.row("R-174")
@pytest.mark.row("R-176")
@pytest.mark.parametrize(("body", "words"), REFUSED)
def test_what_cannot_be_is_said_in_a_line(
    front: ChatFront, body: dict[str, Any], words: str
) -> None:
    start = time.perf_counter()
    with pytest.raises(RequestError, match=words) as caught:
        front.prepare(USER | body)
    assert len(str(caught.value)) < 500
    assert time.perf_counter() - start < 2


@pytest.mark.row("B-11")
def test_markers_that_are_special_tokens_stay(tmp_path: Path) -> None:
    markers = ("<|im_end|>", "<|tool_call_begin|>", "<|tool_calls_section_begin|>", "<think>")
    folder = write_chat(tmp_path, "{{ 'x' }}", special=markers)
    made = front_of(folder, tool_parser="kimi_k2").prepare(USER)
    tokenizer = tokenizer_of(folder)
    ids = tokenizer.encode("a<|tool_call_begin|>é<|im_end|>", add_special_tokens=False)
    assert made.decoder.decode(ids) == "a<|tool_call_begin|>é"
    assert made.decoder.decode(ids, False) == "a<|tool_call_begin|>é<|im_end|>"
    assert tokenizer.decode(ids) == "aé"
    plain = front_of(folder, tool_parser="hermes", reasoning_parser="none").prepare(USER)
    assert plain.decoder.decode(ids) == "aé"


def read(made: Prepared, text: str) -> dict[str, Any]:
    parser = made.parser()
    parser.push(text)
    parser.finish()
    return parser.message()


def test_calls_are_read_only_where_there_are_tools(front: ChatFront) -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": 5}}</tool_call>'
    assert read(front.prepare(USER), text)["content"] == text
    made = front.prepare(USER | {"tools": [WEATHER]})
    (call,) = read(made, text)["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "5"}, "as the schema has it"
    none = front.prepare(USER | {"tools": [WEATHER], "tool_choice": "none"})
    assert read(none, text)["content"] == text


@pytest.mark.row("B-11")
def test_generation_defaults(tmp_path: Path) -> None:
    config = {"eos_token_id": [2, 5], "do_sample": True, "temperature": 0.6, "top_k": 20}
    more = {"min_p": 0.1, "repetition_penalty": 1.1, "max_new_tokens": 99}
    (tmp_path / "generation_config.json").write_text(json.dumps(config | more))
    own = resolve_defaults(tmp_path)
    assert own == GenerationDefaults((2, 5), 0.6, 20, 1.0, 0.1, 1.1, 99)
    assert resolve_defaults(tmp_path, "vllm") == GenerationDefaults((2, 5), 1.0)
    assert resolve_defaults(None) == GenerationDefaults()
    assert resolve_defaults(None, str(tmp_path)) == own
    changed = resolve_defaults(tmp_path, override={"temperature": 0.1, "eos_token_id": 7})
    assert (changed.temperature, changed.eos_token_ids, changed.top_k) == (0.1, (7,), 20)
    assert resolve_defaults(None, override={"temperature": 0.4}).temperature == 0.4
    with pytest.raises(TextError, match="generation config: must be of"):
        resolve_defaults(None, override={"heat": 1})
    with pytest.raises(TextError, match="temperature must be a number"):
        resolve_defaults(None, override={"temperature": "hot"})
    with pytest.raises(TextError, match="no such file"):
        resolve_defaults(None, "/nowhere")
    params = sampling_params(own, {"temperature": 0.2, "stop": "x"}, True)
    assert (params.temperature, params.top_k, params.max_tokens) == (0.2, 20, 99)
    assert params.stop == ("x",) and params.repetition_penalty == 1.1
    assert sampling_params(own, {}, False).max_tokens == 16
    assert sampling_params(own, {"max_tokens": 5, "max_completion_tokens": 7}, True).max_tokens == 7


def test_a_parser_that_there_is_not_is_refused_first(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "/nowhere", "--weights", "/nowhere", "--prompt", "x"]
    assert main([*argv, "--tool-call-parser", "hermess"]) == 2
    assert "tool call parser: must be one of hermes" in capsys.readouterr().err
    assert main([*argv, "--reasoning-parser", "thoughts"]) == 2
    assert "reasoning parser: must be one of think" in capsys.readouterr().err
