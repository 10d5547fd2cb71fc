"""No string of a config or of a model's name reaches generated sources: whole programs searched."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from conftest import Subject

from kernelgen.cli.model import plain_name, resolve
from kernelgen.codegen.cpp.program import cpp_program
from kernelgen.codegen.families import catalogue
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.core.errors import KernelgenError
from kernelgen.hw import parse_target
from kernelgen.planner.planner import Planner
from kernelgen.spec.config import ConfigFile

MARK = "h0stile"
BREAKOUTS = [
    f'"; system("{MARK}"); //',
    f"'''\n}}\nint {MARK}() {{",
    f"{{{{ {MARK} }}}}",
    f"{{% include '{MARK}' %}}",
    f"*/ {MARK} /*",
    f'R"({MARK})"\\\n#include <{MARK}>',
]


def hostile(config: Mapping[str, Any], text: str) -> Iterator[dict[str, Any]]:
    """The config with `text` in place of each string, in a field that nobody knows, as a key."""
    for name, value in config.items():
        if isinstance(value, str):
            yield {**config, name: text}
        if isinstance(value, list) and value and isinstance(value[0], str):
            yield {**config, name: [*value, text]}
        if isinstance(value, dict):
            yield {**config, name: {**value, text: text}}
    yield {**config, "_name_or_path": text, "transformers_version": text, text: text}
    yield {**config, "quantization_config": None, "auto_map": {"AutoModel": text}}


@pytest.mark.parametrize("text", BREAKOUTS)
def test_config_strings_never_reach_sources(subject: Subject, text: str) -> None:
    built = 0
    for config in hostile(subject.config, text):
        try:
            spec = subject.architecture.read(ConfigFile("config.json", config))
        except KernelgenError:
            continue
        graph = subject.architecture.lower(spec, BFLOAT16)
        device = parse_target("cpu")
        planner = Planner(graph, device, "cpu", catalogue(device))
        plans = [planner.plan("decode", 4), planner.plan("mixed", 128)]
        program = cpp_program(plans, spec.vocab, spec.max_positions)
        built += 1
        for path, source in (program.units | program.headers).items():
            assert MARK not in source and MARK not in path, path
        assert MARK not in json.dumps([plan.to_json() for plan in plans])
    assert built  # the last two configs at least say nothing that matters


@pytest.mark.parametrize("text", [*BREAKOUTS, "a" * 200, "..", "con\x00", "-rf"])
def test_a_folder_of_any_name_gives_a_plain_one(subject: Subject, text: str, tmp_path) -> None:
    plain = plain_name(text)
    assert (
        plain
        and len(plain) <= 80
        and not set(plain) - set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    )
    assert plain[0] not in ".-" and plain[-1] not in ".-"
    if "/" in text or "\x00" in text or text == "..":
        return
    folder = tmp_path / text
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(subject.config)))
    assert resolve(str(folder)).name == plain
