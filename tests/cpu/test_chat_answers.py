"""Answers taken apart as they come: calls and thoughts of every format, in any pieces."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelgen_runtime.chat.answer import AnswerParser
from kernelgen_runtime.chat.delta import delta_json
from kernelgen_runtime.chat.formats.choose import (
    THOUGHTS,
    TOOLS,
    choose_thinking,
    choose_tools,
)
from kernelgen_runtime.errors import RequestError

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}
SCHEMAS = {"weather": WEATHER, "now": {"type": "object", "properties": {}}}
ARGUMENTS = {"city": 'Ulm "am" </tool_call>\nDonau', "days": 3, "exact": True, "tags": ["a", "b"]}
TEXT = json.dumps(ARGUMENTS, ensure_ascii=False)
LINES = {"city": 'Ulm "am" Donau', "days": "3", "exact": "true", "tags": '["a", "b"]'}

# Two calls, weather with ARGUMENTS and now without any, as each family writes them.
WRITTEN: dict[str, str] = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {TEXT}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama3_json": f'{{"name": "weather", "parameters": {TEXT}}}; '
    '{"name": "now", "parameters": {}}',
    "granite": f'<|tool_call|>[{{"name": "weather", "arguments": {TEXT}}}, '
    '{"name": "now", "arguments": {}}]',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    "```json\n"
    f"{TEXT}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n"
    "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    f"{TEXT}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
    f'<｜DSML｜parameter name="city" string="true">{ARGUMENTS["city"]}</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="exact" string="false">true</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="tags" string="false">["a", "b"]</｜DSML｜parameter>\n'
    '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    f"<|tool_call_argument_begin|>{TEXT}<|tool_call_end|><|tool_call_begin|>functions.now:1"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
    f'<|open|>argument key="city" type="string"<|sep|>{ARGUMENTS["city"]}<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
    '<|open|>argument key="exact" type="boolean"<|sep|>true<|close|>argument<|sep|>'
    '<|open|>argument key="tags" type="array"<|sep|>["a", "b"]<|close|>argument<|sep|>'
    '<|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|>",
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\n"
    f"{ARGUMENTS['city']}\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    '<parameter=exact>\ntrue\n</parameter>\n<parameter=tags>\n["a", "b"]\n</parameter>\n'
    "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
}


def parser(tools: str = "", thinking: str = "", begins: str = "maybe") -> AnswerParser:
    numbers = itertools.count()
    return AnswerParser(
        TOOLS[tools] if tools else None,
        THOUGHTS[thinking] if thinking else None,
        begins,
        SCHEMAS,
        new_id=lambda: f"call_{next(numbers)}",
    )


def taken(made: AnswerParser, pieces: Sequence[str]) -> dict[str, Any]:
    """The whole message; the pieces that were told on the way must make it up."""
    deltas = [made.push(piece) for piece in pieces] + [made.finish()]
    message = made.message()
    told = {
        "content": "".join(d.content for d in deltas),
        "reasoning": "".join(d.reasoning for d in deltas),
        "calls": [call for d in deltas for call in d.calls],
    }
    assert told["content"] == (message["content"] or "")
    assert told["reasoning"] == message.get("reasoning_content", "")
    assert [i for i, _ in told["calls"]] == list(range(len(told["calls"])))
    assert len(told["calls"]) == len(message.get("tool_calls", ()))  # type: ignore[arg-type]
    return message


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    found = [call["function"] for call in message.get("tool_calls", [])]
    return [(call["name"], json.loads(call["arguments"])) for call in found]


@pytest.mark.parametrize("cut", [1, 3, 10_000])
@pytest.mark.parametrize("name", TOOLS)
def test_calls_of_every_family(name: str, cut: int) -> None:
    before = "" if name == "llama3_json" else "I look.\n\n"
    text = before + WRITTEN[name] + "\n"
    made = parser(name)
    message = taken(made, [text[i : i + cut] for i in range(0, len(text), cut)])
    assert calls_of(message) == [("weather", ARGUMENTS), ("now", {})]
    assert message["content"] == (before.strip() or None)
    assert made.finish_reason("stop") == "tool_calls" and made.finish_reason("length") == "length"
    ids = [call["id"] for call in message["tool_calls"]]
    kimi = ["functions.weather:0", "functions.now:1"]
    assert ids == (kimi if name == "kimi_k2" else ["call_0", "call_1"])


def test_what_a_client_gets() -> None:
    made = parser("hermes")
    delta = made.push('ok<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    call = {"id": "call_0", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    assert delta_json(delta) == {"content": "ok", "tool_calls": [{"index": 0, **call}]}
    assert not made.push("") and delta_json(made.push("")) == {}
    named = AnswerParser(TOOLS["hermes"], is_named_call=True)
    named.push('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    assert named.finish_reason("stop") == "stop"


@pytest.mark.parametrize("begins", ["open", "maybe"])
@pytest.mark.parametrize("cut", [1, 4, 1000])
@pytest.mark.parametrize("name", THOUGHTS)
def test_thoughts(name: str, cut: int, begins: str) -> None:
    form = THOUGHTS[name]
    wrapped = "".join(form.silent[:1]) + "The answer.\n" + "".join(form.silent[1:2])
    text = f"\nhm < </ 2\n{form.closes}\n\n{wrapped}"
    text = text if begins == "open" else form.opens + text
    message = taken(parser("", name, begins), [text[i : i + cut] for i in range(0, len(text), cut)])
    assert message["reasoning_content"] == "hm < </ 2"
    assert message["content"].strip() == "The answer."


def test_thoughts_that_are_none_or_do_not_end() -> None:
    assert taken(parser("", "think"), ["  no <think>x</think>"]) == {
        "role": "assistant",
        "content": "  no <think>x</think>",
    }
    never = taken(parser("hermes", "think", "open"), ["for ever <tool", "_call>{}"])
    assert never["reasoning_content"] == "for ever <tool_call>{}" and never["content"] == ""
    none = taken(parser("", "think", "no"), ["a</think>b"])
    assert none["content"] == "a</think>b"
    jump = "hm<|open|>response<|sep|>so<|close|>response<|sep|><|close|>message<|sep|>"
    early = taken(parser("kimi_k3", "kimi_k3", "open"), [jump])
    assert (early["reasoning_content"], early["content"]) == ("hm", "so")
    twice = taken(parser("", "think", "open"), ["<think>", "a</think>b"])
    assert (twice["reasoning_content"], twice["content"]) == ("a", "b")


def test_tokens_of_thoughts_are_counted() -> None:
    made = parser("", "think", "open")
    for piece in ("a", "b</think>", "c", "d"):
        made.push(piece, 1)
    assert made.reasoning_tokens == 2


MALFORMED = [
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call> then'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "x"}</tool_call>'),
    ("hermes", "use <tool_call> like this"),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}} and more'),
    ("hermes", "<tool_call>" + "[" * 100 + "]" * 100 + "</tool_call>"),
    ("llama3_json", '{"answer": 42}'),
    ("llama3_json", "<|python_tag|>print(1)\nprint(2)"),
    ("llama3_json", '<|python_tag|>brave.call(query="x") + 1'),
    ("granite", '<|tool_call|>[{"name": "now"}, 3]'),
    ("deepseek_v3", "<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n{}"),
    ("deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>[]<｜tool▁call▁end｜>"),
    ("deepseek_v31", "<｜tool▁calls▁end｜> alone"),
    ("deepseek_v4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\nwords</｜DSML｜invoke>'),
    ("kimi_k2", "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>nothing"),
    ("kimi_k3", '<|open|>tools<|sep|><|open|>call name="now"<|sep|><|close|>call<|sep|>'),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=x>\n1\n</function>\n</tool_call>"),
    ("qwen3_coder", "<function=now>\n</function"),
]


@pytest.mark.parametrize(("name", "text"), MALFORMED)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    for cut in (1, 7, 1000):
        message = taken(parser(name), [text[i : i + cut] for i in range(0, len(text), cut)])
        assert message == {"role": "assistant", "content": text}


def test_a_sound_call_behind_a_broken_one() -> None:
    text = "<tool_call>{oops}</tool_call>\n" + WRITTEN["hermes"]
    message = taken(parser("hermes"), [text])
    assert calls_of(message) == [("weather", ARGUMENTS), ("now", {})]
    assert message["content"] == "<tool_call>{oops}</tool_call>"


def test_calls_that_only_lack_their_end() -> None:
    for text in ('<tool_call>{"name": "now", "arguments": {}}', "\n</tool_ca"):
        whole = '<tool_call>{"name": "now", "arguments": {}}' + text * text.startswith("\n")
        assert calls_of(taken(parser("hermes"), [whole])) == [("now", {})]
    builtin = '<|python_tag|>brave_search.call(query="a, b", count=3)'
    wanted = [("brave_search", {"query": "a, b", "count": 3})]
    assert calls_of(taken(parser("llama3_json"), list(builtin))) == wanted


WORDS = [f"w{i}x" for i in range(30)]


def fragments(name: str) -> list[str]:
    """Pieces of sound calls, whole ones and such that are cut, and what stands between them."""
    rng = random.Random(name)
    text, found = WRITTEN[name], [WRITTEN[name], "\n", " ", "{", "}", '"', "<", "[", ";", "\\"]
    for _ in range(14):
        first = rng.randrange(len(text))
        found.append(text[first : first + rng.randrange(1, 60)])
    form = TOOLS[name]
    return [*found, *form.opens, *form.markers, *form.starts, "<think>", "</think>"]


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, list[str]]:
    name = draw(st.sampled_from(sorted(TOOLS)))
    pieces = draw(st.lists(st.sampled_from([*fragments(name), *WORDS]), max_size=12))
    text = "".join(pieces)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=20)))
    ends = [0, *cuts, len(text)]
    return name, [text[a:b] for a, b in itertools.pairwise(ends)]


@settings(max_examples=200, deadline=None)
@given(answers(), st.sampled_from(["", *THOUGHTS]), st.sampled_from(["open", "maybe", "no"]))
def test_any_pieces_give_the_same(
    answer: tuple[str, list[str]], thinking: str, begins: str
) -> None:
    name, pieces = answer
    text = "".join(pieces)
    whole = taken(parser(name, thinking, begins), [text])
    assert taken(parser(name, thinking, begins), pieces) == whole
    assert taken(parser(name, thinking, begins), list(text)) == whole
    told = json.dumps(whole, ensure_ascii=False)
    lost = [word for word in WORDS if text.count(word) > told.count(word)]
    assert not lost
    if not thinking and "tool_calls" not in whole:
        assert whole["content"] == text


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80), st.sampled_from(sorted(TOOLS)))
def test_any_text_without_calls_comes_back(text: str, name: str) -> None:
    message = taken(parser(name), list(text))
    assert "tool_calls" in message or message["content"] == text


@pytest.mark.parametrize("name", TOOLS)
def test_hostile_answers_take_no_longer(name: str) -> None:
    """What opens again and again and never closes, and one long call in small pieces."""
    begin = time.perf_counter()
    for text in (TOOLS[name].opens[-1:] or ("{",))[0], WRITTEN[name][: len(WRITTEN[name]) // 2]:
        made = parser(name)
        for _ in range(2000):
            made.push(text)
        made.finish()
    long = WRITTEN[name].replace("Ulm", "x" * 100_000)
    made = parser(name)
    for i in range(0, len(long), 20):
        made.push(long[i : i + 20])
    made.finish()
    assert len(calls_of(made.message())) == 2
    assert time.perf_counter() - begin < 6


def test_formats_are_chosen() -> None:
    def tools(architecture: str, template: str = "", option: str = "auto") -> str:
        found = choose_tools(option, architecture, template)
        return found.name if found else ""

    assert tools("qwen3") == "hermes" and tools("kimi_k3") == "kimi_k3"
    assert tools("qwen3", "…<function=…<tool_call>") == "qwen3_coder"
    assert tools("llama", "<|python_tag|>") == "llama3_json" and tools("llama") == "hermes"
    assert tools("granite_swa", "<|tool_call|>") == "granite"
    assert tools("granite_swa", "<tool_call>") == "hermes"
    assert tools("deepseek_v4") == "deepseek_v4"
    assert tools("llama", option="none") == "" and tools("llama", option="kimi_k2") == "kimi_k2"
    assert tools("llama", option="qwen3_xml") == "qwen3_coder"
    with pytest.raises(RequestError, match="hermes"):
        tools("llama", option="hermess")
    assert choose_thinking("auto", "qwen3", "") is THOUGHTS["think"]
    assert choose_thinking("auto", "llama", "{{ messages }}") is None
    assert choose_thinking("qwen3", "llama", "") is THOUGHTS["think"]
    with pytest.raises(RequestError, match="kimi_k3"):
        choose_thinking("thoughts", "llama", "")
