"""Owns the grammars of tool calls, in the form in which each family of models writes them.

The text of a structured answer of kind "calls" is {"style", "many", "tools": [{"name", "schema"}],
"instead"?, "free"?}; `instead` is a schema of JSON that may be given in the place of calls, with
`free` any text may stand around them, and there may be none.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .lark import ANYTHING, json_rule, marked, quoted, text_until
from .library import Tokens

Rules = tuple[str, list[str]]


@dataclass(frozen=True)
class JsonCalls:
    """Calls whose arguments are one JSON object.

    `NAME` stands for the name of the function and `N` for the number of the call, whatever it is.
    """

    before: str
    after: str
    opens: str = ""
    closes: str = ""
    between: str = ""


@dataclass(frozen=True)
class TaggedCalls:
    """Calls with a tag for each argument; text stands in it as it is, all else as JSON.

    `KEY` stands for the name of the argument, `TYPE` for its JSON type, `TEXT` for whether it is
    text ("true", "false").
    """

    before: str
    after: str
    argument: str
    ends: str
    opens: str = ""
    closes: str = ""
    between: str = ""
    gap: str = ""
    pad: str = ""
    """what stands before `ends`, where a value is no free text"""


STYLES: dict[str, JsonCalls | TaggedCalls] = {
    "hermes": JsonCalls(
        '<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", between="\n"
    ),
    "bare_json": JsonCalls('{"name": "NAME", "parameters": ', "}", between="; "),
    "granite": JsonCalls(
        '{"name": "NAME", "arguments": ', "}", "<|tool_call|>[", "]", between=", "
    ),
    "deepseek_v3": JsonCalls(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        between="\n",
    ),
    "deepseek_v31": JsonCalls(
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v4": TaggedCalls(
        '<｜DSML｜invoke name="NAME">\n',
        "</｜DSML｜invoke>\n",
        '<｜DSML｜parameter name="KEY" string="TEXT">',
        "</｜DSML｜parameter>",
        "<｜DSML｜tool_calls>\n",
        "</｜DSML｜tool_calls>",
        gap="\n",
    ),
    "kimi_k2": JsonCalls(
        "<|tool_call_begin|>functions.NAME:N<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": TaggedCalls(
        '<|open|>call tool="NAME" index="N"<|sep|>',
        "<|close|>call<|sep|>",
        '<|open|>argument key="KEY" type="TYPE"<|sep|>',
        "<|close|>argument<|sep|>",
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
    ),
    "function_tags": TaggedCalls(
        "<tool_call>\n<function=NAME>\n",
        "</function>\n</tool_call>",
        "<parameter=KEY>\n",
        "</parameter>",
        between="\n",
        gap="\n",
        pad="\n",
    ),
}


def calls_lark(tokenizer: Tokens, asked: Mapping[str, Any]) -> Rules:
    """Return body and rules of the calls that `asked` allows. Raises ValueError."""
    style, tools = STYLES.get(asked.get("style", "")), asked["tools"]
    if style is None:
        raise ValueError(f"no calls of style {asked.get('style')!r} can be written")
    if not tools:
        raise ValueError("there is no tool to call")
    rules: list[str] = []
    trigger = _trigger(style) if asked.get("free") else ""
    if trigger and not style.opens:
        style = replace(style, before=style.before.removeprefix(trigger))
    names = []
    for i, tool in enumerate(tools):
        make = _json_call if isinstance(style, JsonCalls) else _tagged_call
        rules += make(tokenizer, style, f"call{i}", tool["name"], tool["schema"])  # type: ignore[arg-type]
        names.append(f"call{i}")
    rules.append(f"call: {' | '.join(names)}")
    more = f" ({marked(tokenizer, style.between)} call)*" if asked.get("many") else ""
    opens = marked(tokenizer, style.opens.removeprefix(trigger))
    pieces = [opens, "call" + more, marked(tokenizer, style.closes)]
    body = " ".join(filter(None, pieces))
    if trigger:
        # A call begins where its marker does; all before and behind it is free.
        rules += text_until(tokenizer, "until", trigger)
        rules += [f"part: until {body}", f"rest: {ANYTHING}"]
        return "part* rest", rules
    if (instead := asked.get("instead")) is not None:
        rules.append(f"instead: {json_rule(instead)}")
        body = f"({body} | instead)"
    return body, rules


def can_be_free(style: str) -> bool:
    """Whether calls of a style begin with a marker, so that text around them can be told apart."""
    return bool(_trigger(STYLES[style]))


def _trigger(style: JsonCalls | TaggedCalls) -> str:
    """Return the marker that begins calls; "" where there is none."""
    first = style.opens or style.before.partition("NAME")[0]
    marker = first.partition("\n")[0]
    return marker[: marker.rfind(">") + 1] if marker.startswith("<") else ""


def _json_call(tokenizer: Tokens, style: JsonCalls, rule: str, name: str, schema: Any) -> list[str]:
    head = _head(tokenizer, style.before, name, in_json='"NAME"' in style.before)
    return [
        f"{rule}: {head} {rule}_arguments {marked(tokenizer, style.after)}",
        f"{rule}_arguments: {json_rule(schema)}",
    ]


def _tagged_call(
    tokenizer: Tokens, style: TaggedCalls, rule: str, name: str, schema: Any
) -> list[str]:
    """Arguments in the order of the schema, those that are not required may be left out."""
    found = schema if isinstance(schema, Mapping) else {}
    properties = found.get("properties")
    required = found.get("required", ())
    defined = {key: found[key] for key in ("$defs", "definitions") if key in found}
    pieces, rules = [], []
    for i, (key, one) in enumerate((properties or {}).items()):
        pieces.append(f"{rule}_{i}" + ("" if key in required else "?"))
        rules += _argument(tokenizer, style, f"{rule}_{i}", key, one, defined)
    head = _head(tokenizer, style.before, _escaped(style, name), in_json=False)
    whole = [head, *pieces, marked(tokenizer, style.after)]
    return [f"{rule}: {' '.join(whole)}", *rules]


def _argument(
    tokenizer: Tokens,
    style: TaggedCalls,
    rule: str,
    key: str,
    schema: Any,
    defined: Mapping[str, Any],
) -> list[str]:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    is_text = kind == "string"
    if kind is None and isinstance(values, list):
        is_text = all(isinstance(one, str) for one in values)
    tag = style.argument.replace("KEY", _escaped(style, key))
    tag = tag.replace("TEXT", "true" if is_text else "false")
    tag = tag.replace("TYPE", json_type("string" if is_text else kind))
    gap = marked(tokenizer, style.gap)
    if not is_text:
        schema = {**schema, **defined} if isinstance(schema, Mapping) else schema
        ends = marked(tokenizer, style.pad + style.ends)
        return [
            f"{rule}: {marked(tokenizer, tag)} {rule}_value {ends} {gap}",
            f"{rule}_value: {json_rule(schema)}",
        ]
    if isinstance(values, list):
        ends = marked(tokenizer, style.pad + style.ends)
        choices = " | ".join(_literals(values))
        return [f"{rule}: {marked(tokenizer, tag)} ({choices}) {ends} {gap}"]
    return [
        f"{rule}: {marked(tokenizer, tag)} {rule}_value {gap}",
        *text_until(tokenizer, f"{rule}_value", style.ends),
    ]


def json_type(kind: object) -> str:
    """Return the name of a JSON type as a tag has it: "integer" is "number", unknown "object"."""
    if kind == "integer":
        return "number"
    known = ("string", "number", "boolean", "null", "array", "object")
    return kind if isinstance(kind, str) and kind in known else "object"


def _literals(values: Iterable[Any]) -> list[str]:
    return [quoted(one) for one in values if isinstance(one, str) and one] or ['""']


def _head(tokenizer: Tokens, text: str, name: str, in_json: bool) -> str:
    """Return what stands before the arguments; a place for the number takes any small number."""
    if in_json:
        name = json.dumps(name, ensure_ascii=False)[1:-1]
    before, _, after = text.partition("NAME")
    pieces = [marked(tokenizer, before + name)]
    for i, part in enumerate(_split_number(after)):
        pieces += ["/[0-9]{1,3}/"] if i else []
        pieces.append(marked(tokenizer, part))
    return " ".join(filter(None, pieces))


def _split_number(text: str) -> list[str]:
    for mark in (":N<", '"N"'):
        if mark in text:
            first, _, last = text.partition(mark)
            return [first + mark[0], mark[2:] + last]
    return [text]


def _escaped(style: TaggedCalls, value: str) -> str:
    """Escape a value that stands in quotes, as the families that quote do."""
    if '="KEY"' not in style.argument:
        return value
    return value.replace("&", "&amp;").replace('"', "&quot;")
