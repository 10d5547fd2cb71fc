"""Owns the Jinja sandbox for templates of a checkpoint: bounded time, size and reach."""

import json
import mmap
import re
import sys
import time
from collections.abc import Callable, Iterator, Sized
from types import FrameType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

MAX_SIZE = 16 << 20
MAX_BITS = 4096
MAX_GROWTH = 1 << 30
LINES_UNWATCHED = 16
_PAGE = mmap.PAGESIZE
# Without xmlattr, pprint, urlize, format, …: a prompt needs none of those.
FILTERS = frozenset(
    (
        *("abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape"),
        *("first", "float", "groupby", "indent", "int", "items", "join", "last", "length"),
        *("list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse"),
        *("round", "safe", "select", "selectattr", "slice", "sort", "string", "sum", "title"),
        *("trim", "truncate", "unique", "upper", "wordcount"),
    )
)
# What makes a value whose size is set by a number or by a product of sizes.
_WIDTHS = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice"))
_PRODUCTS = frozenset(("replace", "join", "translate"))
_WIDE_FORMAT = re.compile(r"\{[^}]*:[^}]*(\d{4}|\{)")


class RefusedError(Exception):
    """The template did something that is not allowed."""


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: marks what training learns from, and is text."""

    tags = {"generation"}  # noqa: RUF012  (as the base class has it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's own sandbox, without ways to make a huge value out of a short expression."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self) -> None:
        extensions = [loopcontrols, _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        for name in set(self.filters) - FILTERS:
            del self.filters[name]
        for name in (_WIDTHS | _PRODUCTS) & set(self.filters):
            self.filters[name] = _bounded_filter(name, self.filters[name])
        self.filters["tojson"] = to_json

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse repetition, sums and powers of absurd size, and formatting with `%`."""
        size = _size(left) + _size(right)
        if isinstance(left, int) and isinstance(right, int):
            if operator == "**" and left.bit_length() * max(right, 0) > MAX_BITS:
                raise RefusedError("a power too high")
            if operator == "*" and left.bit_length() + right.bit_length() > MAX_BITS:
                raise RefusedError("a product too large")
        elif operator == "*":
            counts = [abs(value) for value in (left, right) if isinstance(value, int)]
            size *= max(counts, default=1)
        elif operator == "%" and isinstance(left, str | bytes):
            raise RefusedError("formatting with %")
        _check_size(size)
        return super().call_binop(context, operator, left, right)

    def concat_values(self, *values: Any) -> str:
        """Join the operands of `~`, of bounded size."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def call(__self, __context: Any, __function: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse calls whose result would be absurdly large; the rest goes to Jinja's sandbox."""
        name = getattr(__function, "__name__", "")
        owner = getattr(__function, "__self__", "")
        _check_call(name, owner, (*args, *kwargs.values()))
        return super().call(__context, __function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Let `str.format` through only where no field has a large or a computed width."""
        wrapped: Callable[..., str] | None = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FORMAT.search(str(value.__self__)):
            raise RefusedError("a format too wide")
        return wrapped


class _Generator(CodeGenerator):
    """Jinja's compiler, except that `~` asks the environment and so has a bound."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat_values(")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write(")")


TemplateSandbox.code_generator_class = _Generator


class Deadline:
    """Stops template code of this thread that runs longer than `seconds`, or eats memory.

    No single value can be huge, but there may be many of them: where the process has grown by more
    than `MAX_GROWTH` bytes since the start, the template ends. A template is compiled to Python,
    so a trace function sees each line of it: that ends nested loops that write nothing, without a
    second thread or process.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self._most = _resident_pages() + MAX_GROWTH // _PAGE
        self._lines = 0
        self._outer: Any = None

    def __enter__(self) -> None:
        self._outer = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._outer)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if time.perf_counter() > self._end:
            raise RefusedError("it runs too long")
        self._lines += 1
        if self._lines % LINES_UNWATCHED == 0 and _resident_pages() > self._most:
            raise RefusedError("it takes too much memory")
        return self._trace


def _resident_pages() -> int:
    """Return the pages of memory that the process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Return plain JSON: a prompt is not HTML, nothing in it is escaped."""
    ascii_only = bool(options.get("ensure_ascii", False))
    width = min(indent, 16) if isinstance(indent, int) else None
    given = options.get("separators")
    separators = None
    if isinstance(given, list | tuple) and len(given) == 2:
        separators = (str(given[0])[:8], str(given[1])[:8])
    sort = options.get("sort_keys") is True
    return json.dumps(
        value, ensure_ascii=ascii_only, indent=width, separators=separators, sort_keys=sort
    )


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # Jinja marks filters that want the context or the environment first; a wrapper keeps the mark.
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_call(name, "", (*args, *kwargs.values()))
        return function(*args, **kwargs)

    bounded.__dict__.update(function.__dict__)
    return bounded


def _check_call(name: str, owner: Any, args: tuple[Any, ...]) -> None:
    if name in _WIDTHS:
        numbers = (abs(value) for value in args if isinstance(value, int))
        texts = (value for value in (owner, *args) if isinstance(value, str))
        lines = max((1 + text.count("\n") for text in texts), default=1)
        _check_size(lines * max(numbers, default=0))
    if name in _PRODUCTS:
        sizes = sorted((_size(value) for value in (owner, *args)), reverse=True)
        _check_size(sizes[0] * (sizes[1] + 1 if len(sizes) > 1 else 1))


def _size(value: Any) -> int:
    """Return the length of a value; an iterator may yield as much as the longest range does."""
    if isinstance(value, Sized):
        return len(value)
    return MAX_RANGE if isinstance(value, Iterator) else 0


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise RefusedError("it makes a value too large")
