"""Owns a chat request as a whole: its prompt, what binds its answer, how that is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifact.bounded_json import Json
from ..errors import RequestError
from ..guide.calls import can_be_free
from ..sample.structured import Structured
from ..text.detokenize import Decoder
from ..text.tokenizer import TextTokenizer
from .answer import AnswerParser
from .decoder import decoder_for
from .formats.choose import THOUGHTS, TOOLS, Thinking, choose_thinking, choose_tools
from .formats.reading import ToolFormat
from .prompt import ChatOptions, ChatPrompts
from .tools import Tools, read_tools
from .wish import after_thought, completion_structured

if TYPE_CHECKING:
    from ..llm import LLM


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
        options = options or ChatOptions()
        self._tokenizer = tokenizer
        self._prompts = ChatPrompts(folder, options)
        source = self._prompts.source
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
        return self._prompts.has_template

    def prepare(self, body: Mapping[str, Json]) -> Prepared:
        """Return what a body of a chat asks for. Raises RequestError, TextError.

        Renders a template, which may take seconds where that is hostile.
        """
        body = {name: value for name, value in body.items() if value is not None}
        tools = read_tools(body)
        if tools.is_used and self._tools is None and tools.is_forced:
            raise RequestError("tool_choice: calls cannot be read here; name a tool call parser")
        text, continued = self._prompts.render(body, tools)
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
        return self._prompts.render(body, read_tools(body))[0]

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
