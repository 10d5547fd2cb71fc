"""Owns rendering a checkpoint's chat template from messages to prompt text."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from ..errors import TextError, shown
from .sandbox import MAX_SIZE, Deadline, RefusedError, TemplateSandbox

MAX_TEMPLATE_CHARACTERS = 1 << 20
MAX_SECONDS = 5.0


class ChatTemplate:
    """A compiled template and the special tokens it may name. Raises TextError if it is none.

    `source` is its text.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise TextError(f"{where}: chat template of {len(source)} characters is too long")
        self.source, self._where = source, where
        self._special_tokens = dict(special_tokens)
        sandbox = TemplateSandbox()
        sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            with Deadline(MAX_SECONDS):
                self._template = sandbox.from_string(source)
        except (jinja2.TemplateError, RefusedError, RecursionError, MemoryError, ValueError) as e:
            raise TextError(f"{where}: chat template: {shown(str(e), 200)}") from None

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **more: Any
    ) -> str:
        """Return the prompt text of `messages` ({"role", "content"}).

        `more` is what templates ask for beside them (tools, documents, enable_thinking, …).
        Raises TextError for whatever the template does wrong, or says with raise_exception.
        """
        values = {
            **self._special_tokens,
            **more,
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        pieces, size = [], 0
        try:
            with Deadline(MAX_SECONDS):
                for piece in self._template.generate(values):
                    pieces.append(piece)
                    size += len(piece)
                    if size > MAX_SIZE:
                        raise RefusedError("it writes too much text")
        except Exception as error:  # a template can raise anything that Python can
            reason = shown(str(error) or type(error).__name__, 200)
            raise TextError(f"{self._where}: chat template: {reason}") from None
        return "".join(pieces)


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form[:200])
