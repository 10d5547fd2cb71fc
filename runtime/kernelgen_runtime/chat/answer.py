"""Owns what an answer means: content, thoughts and tool calls out of text that comes in pieces."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from ..artifact.bounded_json import Json
from .delta import Call, Delta, call_id, call_json
from .formats.choose import Thinking
from .formats.coerce import fit
from .formats.reading import Found, Progress, Schemas, ToolFormat, partial_tail

NewId = Callable[[], str]


@dataclass
class _Made:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[int, Call]] = field(default_factory=list)


class AnswerParser:
    """Takes an answer apart as it comes. However it is cut into pieces, the whole is the same.

    Nothing is lost: what is no sound call, markers included, is content. Only white space beside
    thoughts and calls goes, and the markers of those. `tools` None: calls are text like any other.
    `begins`: the answer begins inside a thought ("open", its marker stands in the prompt), may
    begin with one ("maybe"), or has none ("no").
    """

    def __init__(
        self,
        tools: ToolFormat | None = None,
        thinking: Thinking | None = None,
        begins: str = "maybe",
        schemas: Schemas | None = None,
        *,
        is_named_call: bool = False,
        tells_reasoning: bool = True,
        new_id: NewId = call_id,
    ) -> None:
        self._tools, self._schemas = tools, schemas or {}
        self._thinking = None if begins == "no" else thinking
        self._silent = thinking.silent if thinking else ()
        self._is_named, self._tells_reasoning = is_named_call, tells_reasoning
        self._new_id = new_id
        # One of the states below; each is a method that returns whether it got any further.
        self._state = self._content
        if self._thinking is not None:
            self._state = self._thought if begins == "open" else self._begin
        self._rest = ""
        self._space = ""
        """white space that counts only if content, or more of a thought, comes after it"""
        self._is_begun, self._strips = False, self._state == self._thought
        self._calls: list[Call] = []
        self._progress = Progress()
        self._whole: dict[str, list[str]] = {"content": [], "reasoning": []}
        self.reasoning_tokens = 0
        self._made = _Made()

    def push(self, text: str, tokens: int = 0) -> Delta:
        """Take the next piece of text, which `tokens` tokens gave; return what became certain."""
        if self._state in (self._thought, self._begin):
            self.reasoning_tokens += tokens
        self._rest += text
        return self._run(is_all=False)

    def finish(self) -> Delta:
        """Return what was held back: the text is whole."""
        return self._run(is_all=True)

    def finish_reason(self, reason: str) -> str:
        """Return the finish reason as clients know it: "tool_calls" where a model stopped to call.

        A call of a function that the request named ends with "stop".
        """
        called = self._calls and not self._is_named
        return "tool_calls" if called and reason == "stop" else reason

    def message(self) -> dict[str, Json]:
        """Return the whole message so far; content is None where there are calls alone."""
        content, reasoning = ("".join(self._whole[name]) for name in ("content", "reasoning"))
        message: dict[str, Json] = {"role": "assistant", "content": content}
        if self._calls and not content:
            message["content"] = None
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = [call_json(call) for call in self._calls]
        return message

    def _run(self, is_all: bool) -> Delta:
        self._made = made = _Made()
        while self._state(is_all):
            pass
        if is_all and not self._calls and self._state == self._content:
            self._tell("content", self._space)
            self._space = ""
        delta = Delta("".join(made.content), "".join(made.reasoning), tuple(made.calls))
        self._whole["content"].append(delta.content)
        self._whole["reasoning"].append(delta.reasoning)
        return delta

    def _begin(self, is_all: bool) -> bool:
        """Find out whether the answer begins with a thought."""
        assert self._thinking is not None
        opens, text = self._thinking.opens, self._rest.lstrip()
        if text.startswith(opens):
            self._rest, self._state, self._strips = text[len(opens) :], self._thought, True
            return True
        if opens.startswith(text) and not is_all:
            return False
        self._state = self._content
        return True

    def _thought(self, is_all: bool) -> bool:
        """Take a thought up to what ends it."""
        assert self._thinking is not None
        thinking, text = self._thinking, self._rest
        if not self._is_begun and thinking.opens:
            # Some models write the marker that their prompt has already.
            bare = text.lstrip()
            if bare.startswith(thinking.opens):
                text = self._rest = bare[len(thinking.opens) :]
            elif thinking.opens.startswith(bare) and not is_all:
                return False
            self._is_begun = True
        ends = (thinking.closes, *thinking.ends_before)
        at, marker = _first(text, ends)
        if marker:
            self._reason(text[:at])
            consumed = len(marker) if marker == thinking.closes else 0
            self._rest, self._state = text[at + consumed :], self._content
            self._space, self._is_begun, self._strips = "", False, True
            return True
        keep = 0 if is_all else partial_tail(text, ends)
        self._reason(text[: len(text) - keep])
        self._rest = text[len(text) - keep :]
        return False

    def _content(self, is_all: bool) -> bool:
        """Take content up to a marker."""
        tools, text = self._tools, self._rest
        opens = tools.opens if tools else ()
        if tools and tools.starts and not self._is_begun:
            place = self._start(text, tools.starts, is_all)
            if place is None:
                return False
            if place >= 0:
                self._space += text[:place]
                self._rest, self._state = text[place:], self._call
                return True
        at, marker = _first(text, (*opens, *self._silent))
        if marker:
            self._say(text[:at])
            if marker in opens:
                self._rest, self._state = text[at:], self._call
            else:
                self._rest = text[at + len(marker) :]
            return True
        keep = 0 if is_all else partial_tail(text, (*opens, *self._silent))
        self._say(text[: len(text) - keep])
        self._rest = text[len(text) - keep :]
        return False

    def _start(self, text: str, starts: tuple[str, ...], is_all: bool) -> int | None:
        """Return where a call without a marker begins; -1 if none does, None if it may yet."""
        between = " \t\r\n;" if self._calls else " \t\r\n"
        bare = text.lstrip(between)
        if any(bare.startswith(start) for start in starts):
            return len(text) - len(bare)
        return None if not bare and not is_all else -1

    def _call(self, is_all: bool) -> bool:
        """Take a call, if it is one; its marker is content if not."""
        assert self._tools is not None
        found = self._tools.read(self._rest, is_all, self._schemas, self._progress)
        if found is None:
            return False
        text, self._rest = self._rest[: found.length], self._rest[found.length :]
        self._progress, self._state = Progress(), self._content
        if found.calls:
            self._space, self._strips = "", False
            for call in found.calls:
                self._note(call)
        elif not (found.is_markup and self._calls):
            self._say(text)
        return True

    def _note(self, found: Found) -> None:
        arguments = fit(found.arguments, self._schemas.get(found.name))
        known = any(call.id == found.id for call in self._calls)
        ident = found.id if found.id and not known else self._new_id()
        call = Call(ident, found.name, json.dumps(arguments, ensure_ascii=False))
        self._made.calls.append((len(self._calls), call))
        self._calls.append(call)

    def _say(self, text: str) -> None:
        """Tell content; white space at its end waits for what comes, if calls may."""
        text = self._stripped(text)
        if self._tools is None and not self._silent:
            self._tell("content", text)
            return
        body = text.rstrip()
        if body:
            self._is_begun = True
            self._tell("content", self._space + body)
            self._space = ""
        self._space += text[len(body) :]

    def _reason(self, text: str) -> None:
        """Tell of a thought, without the white space at its ends."""
        text = self._stripped(text)
        body = text.rstrip()
        if body:
            self._tell("reasoning", self._space + body)
            self._space = ""
        self._space += text[len(body) :]

    def _stripped(self, text: str) -> str:
        """Return text without white space before it, where that is to go."""
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return text

    def _tell(self, kind: str, text: str) -> None:
        if kind == "content":
            self._made.content.append(text)
        elif self._tells_reasoning:
            self._made.reasoning.append(text)


def _first(text: str, markers: tuple[str, ...]) -> tuple[int, str]:
    """Return place and text of the marker that begins first, the longest of those; "" if none."""
    found = [(at, -len(one), one) for one in markers if one and (at := text.find(one)) >= 0]
    at, _, marker = min(found, default=(0, 0, ""))
    return at, marker
