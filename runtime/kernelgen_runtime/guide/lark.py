"""Owns writing pieces of a grammar: quoted text, markers that may be tokens, thoughts before."""

import json
from typing import Any

from .library import Tokens

ANYTHING = "/(?s:.*)/"
# White space inside JSON has an end: a model that likes it could go on forever otherwise.
JSON_OPTIONS: dict[str, Any] = {
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}",
    "coerce_one_of": True,
}


def json_rule(schema: Any) -> str:
    """Return what stands for a JSON value of `schema`, with our own options."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": JSON_OPTIONS}
    return "%json " + json.dumps(schema, ensure_ascii=True)


def quoted(text: str) -> str:
    """Return `text` as a literal of a grammar."""
    return json.dumps(text, ensure_ascii=True)


def marked(tokenizer: Tokens, text: str) -> str:
    """Return `text` as a sequence of literals, and of tokens where it has special ones.

    A special token is no text to a grammar: it must be named by its number.
    """
    pieces: list[str] = []
    plain: list[int] = []

    def close() -> None:
        if plain:
            pieces.append(quoted(tokenizer.decode_str(plain)))
            plain.clear()

    for token in tokenizer.tokenize_str(text, parse_special=True):
        if tokenizer.is_special_token(token):
            close()
            pieces.append(f"<[{token}]>")
        else:
            plain.append(token)
    close()
    return " ".join(pieces)


def text_until(tokenizer: Tokens, name: str, marker: str) -> list[str]:
    """Return the rules of `name`: any text up to and with the first `marker`."""
    found = marked(tokenizer, marker)
    if found.startswith("<["):
        return [f"{name}: {name}_text {found}", f"{name}_text: {ANYTHING}"]
    return [f"{name}[suffix={quoted(marker)}]: {ANYTHING}"]


def thinking_rules(tokenizer: Tokens, opens: str, closes: str) -> tuple[str, list[str]]:
    """Return what stands before an answer and the rules it needs; see `Structured`."""
    if not closes:
        return "", []
    rules = [*text_until(tokenizer, "thought", closes), r"space: /[ \t\r\n]{0,8}/"]
    if not opens:
        return "thought space", rules
    return "thinking? space", [f"thinking: {marked(tokenizer, opens)} thought", *rules]
