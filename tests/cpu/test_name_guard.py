"""An architecture is one folder: its name occurs nowhere else in the tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHS = ROOT / "kernelgen" / "archs"

GUARDED = ("kernelgen", "runtime", "templates", "tools", "tests", ".ci", "pyproject.toml")
# References, recorded rows and text for people may name models.
EXEMPT = ("tests/oracle", "tests/archs", "tests/golden", "bench", "docs", "autotune_configs")
DEMO_DEFAULT = "kernelgen/cli/demo.py"  # the one place that prefers a model
# People know a way of writing tool calls by the models that had it first.
FORMATS = (
    "runtime/kernelgen_runtime/chat/formats/",
    "runtime/kernelgen_runtime/guide/calls.py",
    "tests/cpu/test_chat_answers.py",
)
CONFIGS = re.compile(r"kernelgen/archs/\w+/(?:tiny|models/[^/]+)\.json")  # as they are published
SUFFIXES = {".py", ".j2", ".h", ".cpp", ".cu", ".toml", ".json", ".jsonl", ".yaml", ".sh", ""}


def names() -> list[str]:
    return sorted(path.parent.name for path in ARCHS.glob("*/__init__.py"))


def files() -> Iterator[Path]:
    for top in GUARDED:
        base = ROOT / top
        for path in [base] if base.is_file() else sorted(base.rglob("*")):
            inside = path.relative_to(ROOT).as_posix()
            folders = tuple(f"{e}/" for e in EXEMPT)
            skipped = inside == DEMO_DEFAULT or inside.startswith((*folders, *FORMATS))
            skipped = skipped or CONFIGS.fullmatch(inside) is not None
            if path.is_file() and path.suffix in SUFFIXES and not skipped:
                yield path


def pattern(name: str) -> re.Pattern[str]:
    """Any spelling of a folder's name: some_arch, some-arch, SomeArch; "x.cpp" is a program."""
    words = "[-_ ]?".join(map(re.escape, name.split("_")))
    return re.compile(rf"(?<![a-z]){words}(?![0-9]|[-_.]cpp)", re.IGNORECASE)


@pytest.mark.row("R-037")
def test_no_architecture_is_named_outside_its_folder() -> None:
    found = []
    patterns = {name: pattern(name) for name in names()}
    for path in files():
        text = path.read_text(encoding="utf-8", errors="replace")
        for name, regex in patterns.items():
            if ARCHS / name in path.parents:
                continue
            for number, line in enumerate(text.splitlines(), 1):
                if regex.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {name}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


def test_the_guard_sees_every_spelling() -> None:
    regex = pattern("some_arch3")
    for text in ("some_arch3", "SomeArch3ForCausalLM", "some-arch3-8b", '"Some Arch3"'):
        assert regex.search(text), text
    for text in ("awesome_arch3", "some_arch35", "some_arch3.cpp"):
        assert not regex.search(text), text
