"""Owns what `tune` does by its options, and which options each of that has a use for."""

from __future__ import annotations

from enum import StrEnum

import typer

from kernelgen.core.errors import UsageError


class Mode(StrEnum):
    """What one command does; the value is the option that asks for it."""

    TUNE = "MODEL"
    EMIT = "--emit"
    MEASURE = "--measure"
    MERGE = "--merge"
    REPORT = "--report"


_WISH = frozenset(
    {
        "model", "target", "sizes", "families", "missing", "effort", "dtype", "tables",
        "whole_step", "quantization_config", "kv_cache_dtype",
    }
)  # fmt: skip
_USED: dict[Mode, frozenset[str]] = {
    Mode.TUNE: _WISH | {"minutes", "journal", "provenance", "ray", "html", "jobs", "json"},
    Mode.EMIT: _WISH | {"emit", "jobs", "json"},
    Mode.MEASURE: frozenset({"measure", "minutes", "journal", "ray", "html", "json"}),
    Mode.MERGE: frozenset({"merge", "tables", "provenance", "json"}),
    Mode.REPORT: frozenset({"report", "html", "json"}),
}


def mode_of(context: typer.Context) -> Mode:
    """The mode of a command line; `UsageError` for two at once, and for an option that it would
    not look at.
    """
    given = [
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    asked = [m for m in Mode if m is not Mode.TUNE and m.value.removeprefix("--") in given]
    if len(asked) > 1:
        told = " and ".join(mode.value for mode in asked)
        raise UsageError(f"{told}: each stands alone", hint="see `kernelgen tune --help`")
    mode = asked[0] if asked else Mode.TUNE
    for name in given:
        if name not in _USED[mode]:
            option = "MODEL" if name == "model" else _spelt(name)
            allowed = ", ".join(sorted(_spelt(o) for o in _USED[mode] if o != "model"))
            raise UsageError(f"{option} does not go with {mode.value}", allowed=allowed)
    return mode


def _spelt(name: str) -> str:
    return f"--{name.replace('_', '-')}"
