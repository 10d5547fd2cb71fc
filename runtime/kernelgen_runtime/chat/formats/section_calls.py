"""Owns calls in a section of their own, each with a name, a separator and JSON: DeepSeek, Kimi K2.

DeepSeek V3: `function<｜tool▁sep｜>NAME`, then the JSON fenced as code; V3.1: `NAME<｜tool▁sep｜>`,
then the JSON as it is. Kimi K2: `functions.NAME:0<|tool_call_argument_begin|>`, then the JSON; all
before the separator is the call's id.
"""

import re
from dataclasses import dataclass

from .json_span import JsonSpan, NoJsonError, parsed
from .reading import MAX_CALL, Found, Progress, Reading, Schemas, may_become, skip_space

MAX_HEAD = 512
_FENCE, _FENCED = "```json", "```"
_KIMI_NAME = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")


@dataclass(frozen=True)
class SectionFormat:
    """`section` and `call` are opening and closing markers, `separator` ends the name."""

    name: str
    style: str
    section: tuple[str, str]
    call: tuple[str, str]
    separator: str
    has_ids: bool = False

    starts: tuple[str, ...] = ()

    @property
    def opens(self) -> tuple[str, ...]:
        """Markers of sections and calls."""
        return (*self.section, self.call[0])

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers."""
        return (*self.section, *self.call, self.separator)

    def read(self, text: str, is_all: bool, schemas: Schemas, progress: Progress) -> Reading | None:
        """Return the call at the start of `text`, with the start of its section before it."""
        opens, closes = self.section
        if text.startswith(closes):
            return Reading(len(closes), is_markup=True)
        start = skip_space(text, len(opens)) if text.startswith(opens) else 0
        nothing = Reading(len(opens) if start else len(self.call[0]))
        if start and may_become(text[start:], self.call[0]):
            return nothing if is_all else None
        if not text.startswith(self.call[0], start) or len(text) > MAX_CALL:
            return nothing
        head_at = start + len(self.call[0])
        head_end = text.find(self.separator, head_at, head_at + MAX_HEAD)
        if head_end < 0:
            return nothing if is_all or len(text) >= head_at + MAX_HEAD else None
        head = text[head_at:head_end].strip()
        try:
            return self._rest(text, head, head_end + len(self.separator), is_all, progress)
        except NoJsonError:
            return nothing
        except _MoreNeededError:
            return nothing if is_all else None

    def _rest(
        self, text: str, head: str, at: int, is_all: bool, progress: Progress
    ) -> Reading | None:
        """Read from behind the separator. Raises NoJsonError, _MoreNeededError."""
        name, start, is_fenced = self._name(text, head, at)
        if not progress.made:
            progress.made.append(JsonSpan(start))
        end = progress.made[0].find(text)
        if end is None:
            raise _MoreNeededError
        value = parsed(text[start:end])
        if not isinstance(value, dict) or not name:
            raise NoJsonError("no call")
        for marker in (_FENCED, self.call[1]) if is_fenced else (self.call[1],):
            at = skip_space(text, end)
            if text.startswith(marker, at):
                end = at + len(marker)
            elif may_become(text[at:], marker):
                if not is_all:
                    raise _MoreNeededError
                end = len(text)
            else:
                raise NoJsonError(f"no {marker}")
        return Reading(end, (Found(name, value, head if self.has_ids else ""),))

    def _name(self, text: str, head: str, at: int) -> tuple[str, int, bool]:
        """Return the name, where the JSON begins, and whether it is fenced."""
        start = skip_space(text, at)
        if self.has_ids:
            match = _KIMI_NAME.fullmatch(head)
            name = match.group("name") if match else ""
        else:
            name = head
        if start >= len(text):
            raise _MoreNeededError
        if text[start] == "{":
            return name, start, False
        if self.has_ids or head != "function":
            raise NoJsonError("no arguments")
        line = text.find("\n", at, at + MAX_HEAD)
        if line < 0:
            if len(text) >= at + MAX_HEAD:
                raise NoJsonError("no name")
            raise _MoreNeededError
        name, start = text[at:line].strip(), skip_space(text, line)
        if may_become(text[start:], _FENCE):
            raise _MoreNeededError
        if not text.startswith(_FENCE, start):
            raise NoJsonError("no fence")
        start = skip_space(text, start + len(_FENCE))
        if start >= len(text):
            raise _MoreNeededError
        if text[start] != "{":
            raise NoJsonError("no arguments")
        return name, start, True


class _MoreNeededError(Exception):
    """The text is a beginning of a call so far."""


DEEPSEEK_V3 = SectionFormat(
    "deepseek_v3",
    "deepseek_v3",
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    "<｜tool▁sep｜>",
)
DEEPSEEK_V31 = SectionFormat(
    "deepseek_v31",
    "deepseek_v31",
    DEEPSEEK_V3.section,
    DEEPSEEK_V3.call,
    DEEPSEEK_V3.separator,
)
KIMI_K2 = SectionFormat(
    "kimi_k2",
    "kimi_k2",
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("<|tool_call_begin|>", "<|tool_call_end|>"),
    "<|tool_call_argument_begin|>",
    has_ids=True,
)
