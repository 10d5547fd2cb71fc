"""Owns which format a model's answers have: by an option, its template, or its architecture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...errors import RequestError, shown
from .json_calls import GRANITE, HERMES, LLAMA
from .reading import ToolFormat
from .section_calls import DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2
from .tag_calls import DEEPSEEK_V4, KIMI_K3, QWEN3_CODER

AUTO, NONE = "auto", "none"
_Format = TypeVar("_Format")


@dataclass(frozen=True)
class Thinking:
    """How thoughts are written: `opens` … `closes`. A thought ends before any of `ends_before` too.

    `silent`: markers around the rest of an answer that are no part of it.
    """

    name: str
    opens: str
    closes: str
    ends_before: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers."""
        return (self.opens, self.closes, *self.ends_before, *self.silent)


TOOLS: dict[str, ToolFormat] = {
    one.name: one
    for one in (
        *(HERMES, LLAMA, GRANITE, DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V4),
        *(KIMI_K2, KIMI_K3, QWEN3_CODER),
    )
}
THINK = Thinking("think", "<think>", "</think>")
GRANITE_THINK = Thinking("granite", "<think>", "</think>", silent=("<response>", "</response>"))
KIMI_K3_THINK = Thinking(
    "kimi_k3",
    "<|open|>think<|sep|>",
    "<|close|>think<|sep|>",
    ends_before=("<|open|>response<|sep|>", "<|open|>tools<|sep|>"),
    silent=(
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
)
THOUGHTS = {one.name: one for one in (THINK, GRANITE_THINK, KIMI_K3_THINK)}

# What a template writes tells more than an architecture: Qwen3 and Qwen3-Coder share one.
_TOLD_TOOLS: Sequence[tuple[str, ToolFormat]] = (
    ("<function=", QWEN3_CODER),
    ("｜DSML｜", DEEPSEEK_V4),
    ("function<｜tool▁sep｜>", DEEPSEEK_V3),
    ("<｜tool▁calls▁begin｜>", DEEPSEEK_V31),
    ("<|tool_calls_section_begin|>", KIMI_K2),
    ("<|open|>", KIMI_K3),
    ("<|python_tag|>", LLAMA),
    ("<|tool_call|>", GRANITE),
    ("<tool_call>", HERMES),
)
_TOLD_THOUGHTS: Sequence[tuple[str, Thinking]] = (
    ("<|open|>think", KIMI_K3_THINK),
    ("<response>", GRANITE_THINK),
    ("</think>", THINK),
    ("<think>", THINK),
)
_OWN_TOOLS: Sequence[tuple[str, ToolFormat]] = (
    ("kimi_k3", KIMI_K3),
    ("kimi", KIMI_K2),
    ("deepseek_v4", DEEPSEEK_V4),
    ("deepseek", DEEPSEEK_V3),
    ("granite", GRANITE),
    ("qwen3", HERMES),
)
_OWN_THOUGHTS: Sequence[tuple[str, Thinking]] = (
    ("kimi_k3", KIMI_K3_THINK),
    ("deepseek_v4", THINK),
    ("qwen3", THINK),
)


def choose_tools(option: str, architecture: str, template: str) -> ToolFormat | None:
    """Return the format of tool calls; None where they are left in the text.

    `option` is a name, "auto" or "none". Where neither template nor architecture tells, it is
    Hermes's, the most common one. Raises RequestError for an unknown name.
    """
    if option == NONE:
        return None
    if option != AUTO:
        return _named("tool call", option, TOOLS)
    told = next((one for text, one in _TOLD_TOOLS if text in template), None)
    own = next((one for name, one in _OWN_TOOLS if architecture.startswith(name)), None)
    return told or own or HERMES


def choose_thinking(option: str, architecture: str, template: str) -> Thinking | None:
    """Return how thoughts are written; None where a model has none.

    `option` is a name, "auto" or "none". Raises RequestError for an unknown name.
    """
    if option == NONE:
        return None
    if option != AUTO:
        return _named("reasoning", option, THOUGHTS)
    told = next((one for text, one in _TOLD_THOUGHTS if text in template), None)
    if told is not None or template:
        return told
    return next((one for name, one in _OWN_THOUGHTS if architecture.startswith(name)), None)


# Names by which people know the same formats from elsewhere.
_ALIASES = {
    "llama": "llama3_json",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "qwen3": "hermes",
    "qwen": "hermes",
    "qwen3_xml": "qwen3_coder",
    "granite4": "hermes",
    "deepseek_v32": "deepseek_v4",
    "kimi": "kimi_k2",
}
_THINKING_ALIASES = dict.fromkeys(
    ("qwen3", "deepseek_r1", "deepseek_v3", "deepseek_v31", "deepseek_v4", "kimi_k2"), "think"
)


def _named(what: str, option: str, known: Mapping[str, _Format]) -> _Format:
    aliases = _ALIASES if what == "tool call" else _THINKING_ALIASES
    name = aliases.get(option, option) if option not in known else option
    if name not in known:
        names = ", ".join((*known, AUTO, NONE))
        raise RequestError(f"{what} parser: must be one of {names}, is {shown(option)}")
    return known[name]
