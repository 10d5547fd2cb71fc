"""Grammars of the real library: what they let through, what is refused, a model bound to them."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.chat.answer import AnswerParser
from kernelgen_runtime.chat.formats.choose import THINK, TOOLS
from kernelgen_runtime.chat.formats.tag_calls import TagFormat
from kernelgen_runtime.commands.batch import run_batch
from kernelgen_runtime.errors import RequestError
from kernelgen_runtime.guide.calls import STYLES, can_be_free
from kernelgen_runtime.guide.fill import fill_all
from kernelgen_runtime.guide.grammars import Grammars
from kernelgen_runtime.sample.structured import Structured
from tiny_tokenizer import END, tokenizer_of, write_chat

from tests.model_builds import build, small_config

pytest.importorskip("llguidance")

MARKERS = tuple(dict.fromkeys(marker for form in TOOLS.values() for marker in form.markers))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["c", "f"]},
    },
    "required": ["city", "n", "unit"],
    "additionalProperties": False,
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TEMPLATE = "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ '\n' }}{% endfor %}a:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat(tmp_path_factory.mktemp("bytes"), TEMPLATE, special=(END, "<|im_start|>"))


@pytest.fixture(scope="module")
def grammars(folder: Path) -> Grammars:
    return grammars_of(folder)


def grammars_of(folder: Path, vocab: int = 300) -> Grammars:
    return Grammars(folder / "tokenizer.json", vocab, [256])


def walk(
    grammars: Grammars,
    structured: Structured,
    seed: int,
    ends: Sequence[Sequence[int]] = (),
    haste: float = 0.7,
) -> list[int]:
    """Tokens that a grammar lets through, at random until its end.

    Where text is free, one of `ends` comes in the end.
    """
    rng, guide = random.Random(seed), grammars.guide(structured)
    bits, tokens, forced = np.zeros(grammars.words, np.int32), list[int](), list[int]()
    for _ in range(3000):
        guide.fill(bits)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        assert allowed and not guide.error
        if forced and forced[0] not in allowed:
            forced = []
        if not forced and ends and len(allowed) > 100 and rng.random() < 0.1:
            forced = list(rng.choice(list(ends)))
        token = 256 if 256 in allowed and rng.random() < haste else rng.choice(allowed)
        token = forced.pop(0) if forced and forced[0] in allowed else token
        reason = guide.take(token)
        tokens += [token] if token != 256 else []
        if reason is not None:
            assert reason == "stop"
            return tokens
    raise AssertionError("it does not end")


def ids_of(folder: Path, text: str) -> list[int]:
    return tokenizer_of(folder).encode(text, add_special_tokens=False)


def text_of(folder: Path, tokens: list[int]) -> str:
    return tokenizer_of(folder).decode(tokens, skip_special_tokens=False)


KINDS = [
    (Structured("regex", r"[a-c]{3}\d+x"), r"[a-c]{3}[0-9]+x"),
    (Structured("regex", r"^a/b\.$"), r"a/b\."),
    (Structured("choice", json.dumps(["yes", "né", 'a"b'])), r'yes|né|a"b'),
    (Structured("lark", 'start: "x" /[0-9]/'), r"x[0-9]"),
]


@pytest.mark.parametrize(("structured", "pattern"), KINDS)
def test_texts_are_of_their_grammar(
    folder: Path, grammars: Grammars, structured: Structured, pattern: str
) -> None:
    for seed in range(5):
        assert re.fullmatch(pattern, text_of(folder, walk(grammars, structured, seed)))


@pytest.mark.parametrize("closes", ["", "</think>"])
def test_json_of_a_schema(folder: Path, grammars: Grammars, closes: str) -> None:
    bond = Structured("json_schema", json.dumps(SCHEMA), "", closes)
    for seed in range(3):
        text = text_of(folder, walk(grammars, bond, seed, [ids_of(folder, closes)]))
        value = json.loads(text.partition(closes)[2] if closes else text)
        assert value.keys() == SCHEMA["properties"].keys() and len(value["city"]) <= 5
    whole = json.loads(text_of(folder, walk(grammars, Structured("json_object"), 5)))
    assert isinstance(whole, dict)


def test_a_thought_may_go_before(folder: Path, grammars: Grammars) -> None:
    bond = Structured("choice", '["yes", "no"]', THINK.opens, THINK.closes)
    for text in ("<think>\nhm, yes?\n</think>\n\nno", "yes", "\nno"):
        guide = grammars.guide(bond)
        tokens = ids_of(folder, text)
        assert [guide.take(token) for token in tokens][-1] in (None, "stop") and not guide.error
    guide = grammars.guide(bond)
    assert guide.take(ids_of(folder, "m")[0]) == "error" and guide.error.startswith(
        "structured output: "
    )
    bits = np.zeros(grammars.words, np.int32)
    guide.fill(bits)
    assert (bits == -1).all(), "after a fault the next token ends it"


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_calls_that_are_forced_can_be_read(tmp_path: Path, style: str, special: bool) -> None:
    """Every call that a grammar lets through is one to the parser of the same family."""
    markers = [m for m in MARKERS if m in (STYLES[style].opens, STYLES[style].closes) and m]
    markers = [*markers, "<|open|>", "<|sep|>", "<|close|>", "<｜tool▁sep｜>"] if special else []
    folder = write_chat(tmp_path, TEMPLATE, special=(END, *markers))
    tools = [{"name": "weather", "schema": SCHEMA}, {"name": "now", "schema": EMPTY}]
    asked = {"style": style, "many": True, "tools": tools}
    bond = Structured("calls", json.dumps(asked))
    form = next(one for one in TOOLS.values() if one.style == style)
    grammars, count = grammars_of(folder, 320), 0
    ends = [ids_of(folder, form.argument_ends)] if isinstance(form, TagFormat) else []
    for seed in range(4):
        text = text_of(folder, walk(grammars, bond, seed, ends))
        parser = AnswerParser(form, schemas={"weather": SCHEMA, "now": EMPTY})
        parser.push(text)
        parser.finish()
        message = parser.message()
        assert message["content"] is None, text
        for call in message["tool_calls"]:  # type: ignore[union-attr]
            function = call["function"]  # type: ignore[index, call-overload]
            arguments = json.loads(function["arguments"])
            assert arguments == {} if function["name"] == "now" else len(arguments) == 3
            count += 1
    assert count >= 4


@pytest.mark.parametrize("style", [style for style in STYLES if can_be_free(style)])
def test_strict_calls_in_free_text(tmp_path: Path, style: str) -> None:
    """Any text, but what begins as a call becomes one, of its schema."""
    folder = write_chat(tmp_path, TEMPLATE)
    tools = [{"name": "now", "schema": EMPTY}, {"name": "later", "schema": EMPTY}]
    bond = Structured("calls", json.dumps({"style": style, "tools": tools, "free": True}))
    form = next(one for one in TOOLS.values() if one.style == style)
    opens = STYLES[style].opens.strip("[\n") or "<tool_call>"
    grammars, count = grammars_of(folder), 0
    for seed in range(4):
        text = text_of(folder, walk(grammars, bond, seed, [ids_of(folder, opens)], haste=0.02))
        parser = AnswerParser(form, schemas={"now": EMPTY, "later": EMPTY})
        parser.push(text)
        parser.finish()
        message = parser.message()
        assert opens not in (message["content"] or ""), text  # type: ignore[operator]
        count += len(message.get("tool_calls", ()))  # type: ignore[arg-type]
    assert count >= 2
    guide = grammars.guide(bond)
    assert [guide.take(i) for i in ids_of(folder, "Just words.")] == [None] * 11
    assert guide.take(256) == "stop"


def test_json_in_the_place_of_calls(folder: Path, grammars: Grammars) -> None:
    asked = {
        "style": "hermes",
        "many": False,
        "tools": [{"name": "now", "schema": EMPTY}],
        "instead": {"const": 7},
    }
    bond = Structured("calls", json.dumps(asked))
    texts = {text_of(folder, walk(grammars, bond, seed)).strip() for seed in range(12)}
    assert "7" in texts and any(text.startswith("<tool_call>") for text in texts)


DEEP: Any = {"type": "string"}
for _ in range(30):
    DEEP = {"type": "object", "properties": {"a": DEEP}, "required": ["a"]}
HOSTILE: dict[str, Structured | tuple[str, Any]] = {
    "look-around": ("regex", "(?=a)b"),
    "back reference": ("regex", r"(a)\1"),
    "unbalanced": ("regex", "(a"),
    "blown up": ("regex", "(((a{1,99}b{1,99}){1,99}c){1,99}d){1,99}"),
    "states": ("regex", "[ab]*a[ab]{900}[cd]*c[cd]{900}"),
    "elsewhere": ("json_schema", {"$ref": "http://example.com/x"}),
    "a file": ("json_schema", {"$ref": "file:///etc/passwd"}),
    "itself": ("json_schema", {"$ref": "#"}),
    "unknown": ("json_schema", {"if": {}, "then": {}}),
    "no type": ("json_schema", {"type": "thing"}),
    "wide": (
        "json_schema",
        {"anyOf": [{"properties": {f"k{i}": {"type": "string"}}} for i in range(500)]},
    ),
    "products": (
        "json_schema",
        {
            "allOf": [
                {"anyOf": [{"properties": {f"a{i}{j}": {"type": "string"}}} for j in range(9)]}
                for i in range(9)
            ]
        },
    ),
    "many properties": (
        "json_schema",
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(512)}},
    ),
    "large numbers": (
        "json_schema",
        {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    ),
    "lists": (
        "json_schema",
        {"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}},
    ),
    "grammar": ("lark", "start: x x x\nx: start | y\ny: x | start"),
    "no grammar": ("lark", "start: ((("),
}


@pytest.mark.row("R-176")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_cost_little(grammars: Grammars, name: str) -> None:
    """Refused in a line, or followed: in any case soon, and each step too."""
    kind, value = HOSTILE[name]  # type: ignore[misc]
    text = value if isinstance(value, str) else json.dumps(value)
    start = time.process_time()
    try:
        guide = grammars.guide(Structured(kind, text))
    except RequestError as error:
        assert len(str(error)) < 500 and "\n" not in str(error)
        assert str(error).startswith(("structured output", "JSON schema", "regex", "grammar"))
    else:
        bits = np.zeros(grammars.words, np.int32)
        for _ in range(8):
            begin = time.process_time()
            guide.fill(bits)
            assert time.process_time() - begin < 0.5
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
            if not len(allowed) or guide.take(int(allowed[-1])) is not None:
                break
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    ("kind", "text"),
    [("regex", "(a?){1000}a{1000}"), ("json_schema", '{"$ref": "#"}'), ("lark", "start: start")],
)
def test_what_shows_in_the_first_token_is_refused(grammars: Grammars, kind: str, text: str) -> None:
    """Before the request is in a step, that is: it is the client's fault, not the server's."""
    with pytest.raises(RequestError, match=f"^structured output: {kind}: [^\n]*$"):
        grammars.check(Structured(kind, text))


ENDLESS = json.dumps(
    {"allOf": [{"type": "string", "pattern": f"^.*(a{i}|b)*.{{0,50}}c$"} for i in range(30)]}
)
"""no two kilobytes, and the library works at it for longer than anybody waited"""


def test_a_grammar_that_takes_for_ever_is_given_up(folder: Path) -> None:
    grammars = grammars_of(folder)
    trial = grammars.trial()
    trial._seconds = 1.0
    fine = Structured("regex", "[0-9]{3}")
    try:
        for bond in (
            Structured("json_schema", ENDLESS),
            Structured("lark", f"start: %json {ENDLESS}"),
        ):
            began = time.process_time()
            with pytest.raises(RequestError, match="takes more than 1 s"):
                grammars.check(bond)
            assert time.process_time() - began < 0.5, "the work is done elsewhere"
            trial._seconds = 30.0  # those that can be compiled are, by the next process
            grammars.check(fine)
            trial._seconds = 1.0
            fine = Structured("regex", "[0-9]{4}")
        with pytest.raises(RequestError, match="look-around"):
            grammars.check(Structured("regex", "(?=a)b"))
    finally:
        process = trial._process
        trial.close()
    assert process is not None and process.wait(10) == -signal.SIGKILL


def test_ordinary_grammars_are_not_tried(folder: Path) -> None:
    grammars = grammars_of(folder)
    trial = grammars.trial()
    grammars.check(Structured("json_schema", json.dumps(SCHEMA)))
    grammars.check(Structured("choice", '["pattern", "allOf"]'))
    grammars.check(Structured("json_object"))
    assert trial._process is None


def test_grammars_are_compiled_once(folder: Path) -> None:
    grammars = grammars_of(folder)
    bond = Structured("json_schema", json.dumps(SCHEMA))
    grammars.check(bond)
    first, second = grammars.guide(bond), grammars.guide(bond)
    assert first.take(ids_of(folder, "{")[0]) is None
    bits = np.zeros((5, grammars.words), np.int32)
    fill_all([first, second, None, second, second], bits)
    assert (bits[2] == -1).all() and (bits[1] == bits[3]).all() and (bits[0] != bits[1]).any()
    assert len(grammars._compiled) == 1
    with pytest.raises(RequestError):
        grammars.check(Structured("regex", "(?=a)b"))
    assert len(grammars._compiled) == 2, "that it is none is known too"
    for i in range(100):
        grammars.check(Structured("regex", f"a{i}"))
    assert len(grammars._compiled) == 64


def test_without_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install llguidance.*\[structured\]"):
        grammars_of(folder).check(Structured("json_object"))


@pytest.fixture(scope="module")
def llm(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A model of random weights that speaks bytes."""
    ids = {"vocab_size": 300, "eos_token_id": 256, "max_position_embeddings": 512}
    built = build(small_config(1) | ids, tmp_path_factory.mktemp("built"))
    llm = LLM(built, "random:3", threads=2, device="cpu", max_num_seqs=6, async_scheduling=True)
    llm.folder = folder
    return llm


def test_a_model_is_bound(llm: LLM, folder: Path) -> None:
    bonds = [
        Structured("regex", "[a-z]{10}"),
        Structured("json_schema", json.dumps(SCHEMA)),
        Structured("choice", '["left", "right"]'),
        None,
        Structured("regex", "[0-9]{1,9}"),
    ]
    extra = [{"temperature": 0.0}, {"seed": 1}, {"seed": 2, "top_k": 3}, {}, {"seed": 4}]
    params = [
        SamplingParams(max_tokens=300, structured=bond, **more)  # type: ignore[arg-type]
        for bond, more in zip(bonds, extra, strict=True)
    ]
    outputs = llm.generate(["x"] * 5, params)
    texts = [output.text or "" for output in outputs]
    assert re.fullmatch("[a-z]{10}", texts[0]) and texts[2] in ("left", "right")
    assert json.loads(texts[1]).keys() == SCHEMA["properties"].keys()
    assert texts[4].isdigit()
    assert [o.finish_reason for o in outputs if o is not outputs[3]] == ["stop"] * 4
    alone = [llm.generate(["x"], one)[0].token_ids for one in params[:3]]
    assert alone == [output.token_ids for output in outputs[:3]]
    penalised = SamplingParams(
        max_tokens=40,
        seed=6,
        structured=Structured("regex", "[ab]{20}"),
        presence_penalty=1.0,
        logit_bias={ids_of(folder, "a")[0]: -5.0},
        logprobs=1,
    )
    (output,) = llm.generate(["x"], penalised)
    assert re.fullmatch("[ab]{20}", output.text or "") and len(output.logprobs or ()) >= 20


def test_a_grammar_that_is_left_nothing_ends_its_request_alone(llm: LLM, folder: Path) -> None:
    digits = Structured("regex", "[0-9]{3}")
    (letter,) = ids_of(folder, "a")
    bound, other = llm.generate(
        ["x", "x"],
        [
            SamplingParams(max_tokens=9, structured=digits, allowed_token_ids=(letter,)),
            SamplingParams(max_tokens=9, structured=digits),
        ],
    )
    assert bound.finish_reason == "error" and "allowed_token_ids or bad_words" in bound.error
    assert "Parser" not in bound.error and "\n" not in bound.error
    assert other.finish_reason == "stop" and (other.text or "").isdigit()


def test_a_batch_with_tools_and_formats(llm: LLM, tmp_path: Path) -> None:
    """`run --batch`: calls that must come, JSON of a schema, and what cannot be."""
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "seed": 3}
    tools = [
        {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "now"}},
    ]
    named = {"type": "function", "function": {"name": "weather"}}
    wish = {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}
    bodies: dict[str, dict[str, Any]] = {
        "required": {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False},
        "named": {"tools": tools, "tool_choice": named},
        "schema": {"response_format": wish},
        "broken": {"structured_outputs": {"regex": "(?=a)b"}},
    }
    lines = [
        {"custom_id": n, "method": "POST", "url": "/v1/chat/completions", "body": chat | body}
        for n, body in bodies.items()
    ]
    completion = {"prompt": "x", "max_tokens": 50, "guided_choice": ["up", "down"], "seed": 1}
    lines.append(
        {"custom_id": "text", "method": "POST", "url": "/v1/completions", "body": completion}
    )
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)))
    assert run_batch(llm, source, out) == 0
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    found = {answer["custom_id"]: answer["response"] for answer in answers}
    choices = {n: r["body"]["choices"][0] for n, r in found.items() if r["status_code"] == 200}
    (call,) = choices["required"]["message"]["tool_calls"]
    assert call["function"]["name"] in ("weather", "now") and call["id"].startswith("call_")
    assert choices["required"]["finish_reason"] == "tool_calls"
    (call,) = choices["named"]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]).keys() == SCHEMA["properties"].keys()
    assert choices["named"]["finish_reason"] == "stop"
    assert json.loads(choices["schema"]["message"]["content"])["unit"] in ("c", "f")
    assert choices["text"]["text"] in ("up", "down")
    assert found["broken"]["status_code"] == 400
    assert "look-around" in found["broken"]["body"]["error"]["message"]
