"""Owns rendering a checkpoint's chat template: sandboxed, and bounded in time and size."""

import datetime
import json
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import TextError, shown

MAX_TEMPLATE_CHARACTERS = 1 << 20
MAX_RENDERED_CHARACTERS = 16 << 20
MAX_SECONDS = 5.0
MAX_FACTOR = 100_000
# Methods whose cost is set by a number and not by the text they are called on.
_WIDTH_METHODS = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs"))


class _Refused(Exception):
    """The template did something that is not allowed."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, without the operations that make a huge value out of a short expression."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse repetition and powers of absurd size; string formatting with `%` altogether."""
        sized = [value for value in (left, right) if hasattr(value, "__len__")]
        if operator == "*" and sized:
            count = next((value for value in (left, right) if isinstance(value, int)), 0)
            if count * max(len(value) for value in sized) > MAX_FACTOR:
                raise _Refused("repeats a value too often")
        elif operator == "%" and sized:
            raise _Refused("formats with %")
        elif operator == "**" and (abs(right) > 64 or abs(left) > MAX_FACTOR):
            raise _Refused("raises to a power too high")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse absurd widths; otherwise call what the sandbox allows."""
        if getattr(__obj, "__name__", "") in _WIDTH_METHODS:
            widths = [value for value in (*args, *kwargs.values()) if isinstance(value, int)]
            if any(value > MAX_FACTOR for value in widths):
                raise _Refused("pads a string too far")
        return super().call(__context, __obj, *args, **kwargs)


class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise TextError(f"{where}: chat template of {len(source)} characters is too long")
        self._where = where
        self._special_tokens = dict(special_tokens)
        sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        sandbox.filters["tojson"] = _tojson
        for width_filter in ("center", "indent", "wordwrap", "format", "pprint", "xmlattr"):
            if width_filter not in ("indent",):
                del sandbox.filters[width_filter]
        sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = sandbox.from_string(source)
        except (jinja2.TemplateError, RecursionError, MemoryError, ValueError) as error:
            raise TextError(f"{where}: chat template: {shown(str(error), 200)}") from None

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **more: Any
    ) -> str:
        """Return the prompt text of `messages` ({"role", "content"}). Raises TextError."""
        values = {**self._special_tokens, **more, "messages": list(messages)}
        pieces, size = [], 0
        try:
            with _Deadline(MAX_SECONDS):
                for piece in self._template.generate(
                    values, add_generation_prompt=add_generation_prompt
                ):
                    pieces.append(piece)
                    size += len(piece)
                    if size > MAX_RENDERED_CHARACTERS:
                        raise _Refused("writes too much text")
        except Exception as error:  # whatever a template does wrong is the template's fault
            raise TextError(f"{self._where}: chat template: {shown(str(error), 200)}") from None
        return "".join(pieces)


class _Deadline:
    """Stops Python code of this thread that runs too long.

    A template is compiled to Python, so a trace function sees each of its lines: that ends nested
    loops which write nothing, without a second thread or process.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self._outer: Any = None

    def __enter__(self) -> None:
        self._outer = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._outer)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if time.perf_counter() > self._end:
            raise _Refused("runs too long")
        return self._trace


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    """Plain JSON: a prompt is not HTML, nothing in it is escaped."""
    return json.dumps(value, ensure_ascii=False, indent=indent and min(indent, 16))


def _raise_exception(message: object) -> None:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form[:200])
