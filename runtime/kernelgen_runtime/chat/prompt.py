"""Owns the prompt of a chat: its template, what that may ask for, a message that is continued."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact.bounded_json import Json
from ..errors import RequestError, TextError, shown
from ..text.settings import chat_template_of, read_chat_templates
from .messages import OPENAI, STRING, read_messages
from .tools import Tools

if TYPE_CHECKING:
    from ..text.chat_template import ChatTemplate

MAX_DOCUMENTS = 1024
MAX_ARGUMENTS = 64
_RESERVED = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
)
# A template that goes through the parts of a content by itself wants them as they are.
_PARTS = re.compile(r"for\s+\w+\s+in\s+\w+(?:\.content\b|\[['\"]content['\"]\])")


@dataclass(frozen=True)
class ChatOptions:
    """What a server is told of chats.

    `chat_template` is a file or the text of a template; `content_format` is "auto", "string" or
    "openai"; parsers are a name, "auto" or "none".
    """

    chat_template: str | None = None
    content_format: str = "auto"
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    trust_request_template: bool = False


class ChatPrompts:
    """Renders chats with the templates of one checkpoint.

    Raises RequestError for an option that is none, TextError for a template that is none.
    """

    def __init__(self, folder: Path, options: ChatOptions) -> None:
        self._folder, self._options = folder, options
        if options.content_format not in ("auto", STRING, OPENAI):
            raise RequestError(
                f"chat template content format: must be auto, {STRING} or {OPENAI}, "
                f"is {shown(options.content_format)}"
            )
        _check_arguments("default chat template arguments", options.template_kwargs)
        self._templates = read_chat_templates(folder, options.chat_template)

    @property
    def source(self) -> str:
        """The text of all templates: it shows what the model has learned to write."""
        return "\n".join(template.source for template in self._templates.values())

    @property
    def has_template(self) -> bool:
        """Whether there is a template for those who give none."""
        return bool(self._templates)

    def render(self, body: Mapping[str, Json], tools: Tools) -> tuple[str, str]:
        """Return the prompt, and what of it is the message that is continued. Raises RequestError,
        TextError.
        """
        template = self._template(body, tools)
        messages = read_messages(body.get("messages"), self._content_format(template))
        continues = _flag(body, "continue_final_message", False)
        adds = _flag(body, "add_generation_prompt", not continues)
        if continues and adds:
            raise RequestError("continue_final_message: cannot go with add_generation_prompt")
        mark = ""
        if continues:
            mark = secrets.token_hex(12)
            messages[-1] = _marked(messages[-1], mark)
        text = template.render(messages, adds, **self._arguments(body, tools))
        if not continues:
            return text, ""
        if text.count(mark) != 1:
            raise RequestError("continue_final_message: the template changes the last message")
        content = read_messages(body.get("messages"))[-1]["content"]
        return text.partition(mark)[0], str(content)

    def _template(self, body: Mapping[str, Json], tools: Tools) -> "ChatTemplate":
        given = body.get("chat_template")
        if given is not None:
            if not self._options.trust_request_template:
                raise RequestError(
                    "chat_template: is taken from a request only where the server is told to "
                    "trust it (--trust-request-chat-template)"
                )
            if not isinstance(given, str):
                raise RequestError(f"chat_template: must be text, is {shown(given)}")
            return chat_template_of(self._folder, given, "chat_template")
        named = "tool_use" if tools.is_used else "default"
        found = self._templates.get(named) or self._templates.get("default")
        if found is None:
            raise TextError(
                f"{self._folder}: no chat template; give the prompt as plain text, or a template "
                "with --chat-template"
            )
        return found

    def _content_format(self, template: "ChatTemplate") -> str:
        if self._options.content_format != "auto":
            return self._options.content_format
        return OPENAI if _PARTS.search(template.source) else STRING

    def _arguments(self, body: Mapping[str, Json], tools: Tools) -> dict[str, Any]:
        """Return what a template may ask for beside messages."""
        given = body.get("chat_template_kwargs", {})
        _check_arguments("chat_template_kwargs", given)
        assert isinstance(given, dict)
        made: dict[str, Any] = {**self._options.template_kwargs}
        effort = body.get("reasoning_effort")
        if effort is not None:
            if not isinstance(effort, str) or len(effort) > 32:
                raise RequestError(f"reasoning_effort: must be a word, is {shown(effort)}")
            made["reasoning_effort"] = effort
            if effort == "none":
                made["enable_thinking"] = made["thinking"] = False
        made |= given
        if tools.is_used:
            made["tools"] = list(tools.listed)
        documents = body.get("documents")
        if documents is not None:
            made["documents"] = _documents(documents)
        return made


def _marked(message: dict[str, Any], mark: str) -> dict[str, Any]:
    """Return the last message with a mark at its end, by which it is found in the prompt."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + mark}
    if not content:
        raise RequestError("continue_final_message: the last message is empty")
    last = {**content[-1], "text": content[-1]["text"] + mark}
    return {**message, "content": [*content[:-1], last]}


def _flag(body: Mapping[str, Json], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"{name}: must be true or false, is {shown(value)}")
    return value


def _check_arguments(where: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise RequestError(f"{where}: must be an object, is {shown(value)}")
    if len(value) > MAX_ARGUMENTS:
        raise RequestError(f"{where}: at most {MAX_ARGUMENTS}, are {len(value)}")
    for name in value:
        if name in _RESERVED or not str(name).isidentifier():
            raise RequestError(f"{where}: {shown(name)} cannot be given here")


def _documents(value: Json) -> list[dict[str, Json]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise RequestError(f"documents: must be a list of objects, is {shown(value)}")
    if len(value) > MAX_DOCUMENTS:
        raise RequestError(f"documents: at most {MAX_DOCUMENTS}, are {len(value)}")
    return value  # type: ignore[return-value]
