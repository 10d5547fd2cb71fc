"""Owns the rendering of Jinja2 templates into readable sources."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jinja2

from kernelgen.core.resources import templates_dir


@functools.cache
def _environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # C++ and Python, not HTML: only checked identifiers and numbers come in
    )
    env.filters["indented"] = _indented
    return env


def _indented(lines: Sequence[str], spaces: int) -> str:
    """Lines as a block of code; the first one is placed by the template."""
    pad = " " * spaces
    return ("\n" + pad).join(lines)


def render(template: str, **context: Any) -> str:
    """The text of a template; a name that the template misses is our mistake and raises."""
    return _environment().get_template(template).render(**context)
