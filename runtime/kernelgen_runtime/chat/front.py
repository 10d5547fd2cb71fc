"""Owns a chat request as a whole: its prompt, what binds its answer, how that is read."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact.bounded_json import Json
from ..errors import RequestError, TextError, shown
from ..guide.calls import can_be_free
from ..sample.structured import Structured
from ..text.detokenize import Decoder
from ..text.settings import chat_template_of, read_chat_templates
from ..text.tokenizer import TextTokenizer
from .answer import AnswerParser
from .decoder import decoder_for
from .formats.choose import THOUGHTS, TOOLS, Thinking, choose_thinking, choose_tools
from .formats.reading import ToolFormat
from .messages import OPENAI, STRING, read_messages
from .tools import Tools, read_tools
from .wish import after_thought, completion_structured

if TYPE_CHECKING:
    from ..llm import LLM
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


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to be served; `parser` gives a reader of each of its answers."""

    prompt_ids: tuple[int, ...]
    structured: Structured | None
    tools: Tools
    decoder: Decoder
    thinking: Thinking | None
    begins: str
    tool_format: ToolFormat | None
    tells_reasoning: bool = True
    continued: str = ""

    @property
    def uses_tools(self) -> bool:
        """Whether calls may come."""
        return self.tools.is_used

    @property
    def is_named_call(self) -> bool:
        """Whether one function must be called."""
        return bool(self.tools.named)

    def parser(self) -> AnswerParser:
        """Return a new reader of an answer."""
        return AnswerParser(
            self.tool_format if self.tools.is_used else None,
            self.thinking,
            self.begins,
            self.tools.schemas,
            is_named_call=self.is_named_call,
            tells_reasoning=self.tells_reasoning,
        )


class ChatFront:
    """Makes prompts of chats and readers of answers, for one checkpoint. Safe for threads.

    Raises RequestError for an option that is none, TextError for a template that is none.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: TextTokenizer,
        architecture: str,
        options: ChatOptions | None = None,
    ) -> None:
        self._options = options = options or ChatOptions()
        self._folder, self._tokenizer = folder, tokenizer
        if options.content_format not in ("auto", STRING, OPENAI):
            raise RequestError(
                f"chat template content format: must be auto, {STRING} or {OPENAI}, "
                f"is {shown(options.content_format)}"
            )
        _check_arguments("default chat template arguments", options.template_kwargs)
        self._templates = read_chat_templates(folder, options.chat_template)
        source = "\n".join(template.source for template in self._templates.values())
        self._tools = choose_tools(options.tool_parser, architecture, source)
        self._thinking = choose_thinking(options.reasoning_parser, architecture, source)
        markers = (
            *(self._tools.markers if self._tools else ()),
            *(self._thinking.markers if self._thinking else ()),
        )
        self._decoder = decoder_for(tokenizer, markers)

    @classmethod
    def of(cls, llm: "LLM", options: ChatOptions | None = None) -> "ChatFront":
        """Return the front of a loaded model. Raises TextError without a tokenizer."""
        tokenizer = llm.tokenizer
        assert llm.folder is not None, "a tokenizer lies in a folder"
        return cls(llm.folder, tokenizer, llm.manifest.model.architecture, options)

    @staticmethod
    def tool_formats() -> tuple[str, ...]:
        """Return the names of tool call parsers."""
        return tuple(TOOLS)

    @staticmethod
    def reasoning_formats() -> tuple[str, ...]:
        """Return the names of reasoning parsers."""
        return tuple(THOUGHTS)

    @property
    def tool_format(self) -> str | None:
        """Name of the parser of tool calls."""
        return self._tools.name if self._tools else None

    @property
    def reasoning_format(self) -> str | None:
        """Name of the parser of thoughts."""
        return self._thinking.name if self._thinking else None

    @property
    def has_template(self) -> bool:
        """Whether there is a template for those who give none."""
        return bool(self._templates)

    def prepare(self, body: Mapping[str, Json]) -> Prepared:
        """Return what a body of a chat asks for. Raises RequestError, TextError.

        Renders a template, which may take seconds where that is hostile.
        """
        body = {name: value for name, value in body.items() if value is not None}
        tools = read_tools(body)
        if tools.is_used and self._tools is None and tools.is_forced:
            raise RequestError("tool_choice: calls cannot be read here; name a tool call parser")
        text, continued = self._render(body, tools)
        thinking, begins = self._thinking, self._begins(text, continued)
        adds = body.get("add_special_tokens") is True
        return Prepared(
            prompt_ids=tuple(self._tokenizer.encode(text, add_special_tokens=adds)),
            structured=self._structured(body, tools, begins),
            tools=tools,
            decoder=self._decoder,
            thinking=thinking,
            begins=begins,
            tool_format=self._tools,
            tells_reasoning=body.get("include_reasoning") is not False,
            continued=continued,
        )

    def text(self, body: Mapping[str, Json]) -> str:
        """Return the prompt of a body as text. Raises RequestError, TextError."""
        body = {name: value for name, value in body.items() if value is not None}
        return self._render(body, read_tools(body))[0]

    def _render(self, body: Mapping[str, Json], tools: Tools) -> tuple[str, str]:
        """Return the prompt, and what of it is the message that is continued."""
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

    def _begins(self, text: str, continued: str) -> str:
        """Return where the answer begins, as `AnswerParser` has it."""
        thinking = self._thinking
        if thinking is None:
            return "no"
        if continued:
            opened, closed = continued.rfind(thinking.opens), continued.rfind(thinking.closes)
            return "open" if opened > closed else "no"
        text = text.rstrip()
        if text.endswith(thinking.opens):
            return "open"
        return "no" if text.endswith((thinking.closes, *thinking.ends_before)) else "maybe"

    def _structured(self, body: Mapping[str, Json], tools: Tools, begins: str) -> Structured | None:
        wish = completion_structured(body)
        opens = closes = ""
        if self._thinking is not None and begins != "no":
            closes = self._thinking.closes
            opens = self._thinking.opens if begins == "maybe" else ""
        is_strict = tools.is_strict and self._tools is not None and can_be_free(self._tools.style)
        bound = tools.is_forced or wish is not None or is_strict
        if tools.is_used and self._tools is not None and bound:
            if wish is not None and tools.is_forced:
                raise RequestError("tool_choice: a call cannot have a response_format too")
            if wish is None:
                return tools.structured(self._tools.style, opens, closes)
            if wish.kind not in ("json_schema", "json_object"):
                raise RequestError(f"tools: cannot go with a {wish.kind} that binds the answer")
            return tools.structured(self._tools.style, opens, closes, wish.schema)
        return None if wish is None else after_thought(wish, opens, closes)


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
