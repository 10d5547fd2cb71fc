"""Owns matching module names: exact names, wildcards, regular expressions, parts of a path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from kernelgen.core.errors import UsageError, quote

_MAX_PATTERN = 512


@dataclass(frozen=True)
class Matcher:
    """One pattern of a config; `text` is kept for messages.

    kinds: `all`; `exact`; `regex` (from the start of the name); `search` (anywhere in it);
    `wildcard` (`*` and `?`, or a module that holds it); `path` (whole parts of the dotted name).
    """

    kind: str
    text: str

    def matches(self, module: str) -> bool:
        """Whether it speaks of the module."""
        if self.kind == "all":
            return True
        if self.kind == "exact":
            return module == self.text
        if self.kind == "regex":
            return compiled(self.text).match(module) is not None
        if self.kind == "search":
            return module == self.text or compiled(self.text).search(module) is not None
        if self.kind == "wildcard":
            return fnmatchcase(module, self.text) or fnmatchcase(module, f"{self.text}.*")
        return f".{self.text.strip('.')}." in f".{module}."


@lru_cache(maxsize=1024)
def compiled(text: str) -> re.Pattern[str]:
    """The expression; `UsageError` where it is none, or longer than any real one."""
    try:
        if len(text) > _MAX_PATTERN:
            raise re.error(f"longer than {_MAX_PATTERN} characters")
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"pattern {quote(text)}: {error}") from error


def named_or_regex(text: str) -> Matcher:
    """compressed-tensors and online targets: `re:` opens a regular expression."""
    if text.startswith("re:"):
        compiled(text[3:])
        return Matcher("regex", text[3:])
    return Matcher("exact", text)


def wildcard_or_regex(text: str) -> Matcher:
    """The same, where names may hold `*` and `?`."""
    found = named_or_regex(text)
    return Matcher("wildcard", text) if found.kind == "exact" and set(text) & set("*?") else found
