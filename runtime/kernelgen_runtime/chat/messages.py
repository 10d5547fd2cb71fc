"""Owns the messages of a chat request: checked one by one, in the form that templates read."""

from typing import Any

from ..artifact.bounded_json import Json, JsonTextError, parse_json
from ..errors import RequestError, shown

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_CALLS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")
STRING, OPENAI = "string", "openai"


def read_messages(value: Json, content_format: str = STRING) -> list[dict[str, Any]]:
    """Return the messages as templates read them. Raises RequestError naming message and field.

    Content is one text where `content_format` is "string", else a list of text parts; arguments
    of calls are objects. `developer` becomes `system`.
    """
    if not isinstance(value, list) or not value:
        raise RequestError(f"messages: must be a list of messages, is {shown(value)}")
    if len(value) > MAX_MESSAGES:
        raise RequestError(f"messages: at most {MAX_MESSAGES}, are {len(value)}")
    return [_message(f"messages[{i}]", one, content_format) for i, one in enumerate(value)]


def _message(where: str, value: Json, content_format: str) -> dict[str, Any]:
    role = value.get("role") if isinstance(value, dict) else value
    if not isinstance(value, dict) or role not in ROLES:
        raise RequestError(f"{where}.role: must be one of {', '.join(ROLES)}, is {shown(role)}")
    made: dict[str, Any] = {k: v for k, v in value.items() if v is not None}
    made["role"] = "system" if role == "developer" else role
    calls = made.get("tool_calls")
    if calls is not None and role != "assistant":
        raise RequestError(f"{where}.tool_calls: belong to an assistant, the role is {role}")
    if calls is not None:
        made["tool_calls"] = _calls(f"{where}.tool_calls", calls)
        if not calls:
            del made["tool_calls"]
    content = made.get("content")
    if content is None and role == "assistant":
        content = ""  # what a message of calls alone has
    made["content"] = _content(f"{where}.content", content, content_format)
    thought = made.pop("reasoning", made.get("reasoning_content"))
    if thought is not None:
        if not isinstance(thought, str):
            raise RequestError(f"{where}.reasoning_content: must be text, is {shown(thought)}")
        made["reasoning_content"] = thought
    for name in ("name", "tool_call_id"):
        if name in made and not isinstance(made[name], str):
            raise RequestError(f"{where}.{name}: must be text, is {shown(made[name])}")
    return made


def _content(where: str, value: Any, content_format: str) -> Any:
    if isinstance(value, str):
        return value if content_format == STRING else [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise RequestError(f"{where}: must be text, or a list of parts, is {shown(value)}")
    if len(value) > MAX_PARTS:
        raise RequestError(f"{where}: at most {MAX_PARTS} parts, are {len(value)}")
    texts = []
    for i, part in enumerate(value):
        kind = part.get("type", "text") if isinstance(part, dict) else part
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(part, dict) and kind not in TEXT_PARTS:
            raise RequestError(
                f"{where}[{i}].type: only parts of type text can be read, is {shown(kind)}"
            )
        if not isinstance(text, str):
            raise RequestError(f"{where}[{i}].text: must be text, is {shown(text)}")
        texts.append(text)
    if content_format == OPENAI:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _calls(where: str, value: Json) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise RequestError(f"{where}: must be a list, is {shown(value)}")
    if len(value) > MAX_CALLS:
        raise RequestError(f"{where}: at most {MAX_CALLS}, are {len(value)}")
    return [_call(f"{where}[{i}]", one) for i, one in enumerate(value)]


def _call(where: str, value: Json) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(function, dict):
        raise RequestError(f"{where}.function: must be an object, is {shown(function)}")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.function.name: must be text, is {shown(name)}")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments or "{}")
        except JsonTextError as error:
            raise RequestError(f"{where}.function.arguments: {error}") from None
    if not isinstance(arguments, dict) and arguments is not None:
        raise RequestError(
            f"{where}.function.arguments: must be the JSON text of an object, is {shown(arguments)}"
        )
    return {
        **value,
        "type": "function",
        "function": {**function, "arguments": arguments or {}},
    }
