"""Owns the pieces of a chat answer: what became certain, and how the chat format spells it."""

import secrets
from dataclasses import dataclass

from ..artifact.bounded_json import Json


@dataclass(frozen=True)
class Call:
    """A call of a tool; `arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Delta:
    """What became certain: pieces of text, and whole calls with their numbers. False if nothing."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[int, Call], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


def call_id() -> str:
    """Return a new id of a call."""
    return f"call_{secrets.token_hex(12)}"


def delta_json(delta: Delta) -> dict[str, Json]:
    """Return a delta as the chat format has it."""
    made: dict[str, Json] = {}
    if delta.content:
        made["content"] = delta.content
    if delta.reasoning:
        made["reasoning_content"] = delta.reasoning
    if delta.calls:
        made["tool_calls"] = [{"index": i, **call_json(call)} for i, call in delta.calls]
    return made


def call_json(call: Call) -> dict[str, Json]:
    """Return a call as the chat format has it."""
    function: dict[str, Json] = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
