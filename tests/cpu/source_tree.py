"""The Python sources of both packages as syntax trees, and what each module imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "kernelgen": ROOT / "kernelgen",
    "kernelgen_runtime": ROOT / "runtime/kernelgen_runtime",
}


@dataclass(frozen=True)
class Import:
    """One import: `target` the absolute dotted name, `module` the part of it that must be a
    module, `lazy` when it stands inside a function."""

    target: str
    module: str
    line: int
    lazy: bool
    relative: bool


@dataclass(frozen=True)
class Module:
    """One source file: `name` dotted, a package by its own name."""

    name: str
    path: Path
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@functools.cache
def modules() -> dict[str, Module]:
    """All modules of both packages by dotted name."""
    return {
        module.name: module
        for package, folder in PACKAGES.items()
        for path in sorted(folder.rglob("*.py"))
        for module in [read_module(path, dotted(package, path.relative_to(folder)))]
    }


def dotted(package: str, inside: Path) -> str:
    parts = [package, *inside.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_module(path: Path, name: str) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return Module(name, path, tree, tuple(_imports(tree, package, False)))


def _imports(node: ast.AST, package: str, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inner = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, alias.name, child.lineno, lazy, False)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                parents = package.split(".")
                parents = parents[: len(parents) - child.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # `from a import b` may mean the module a.b: the caller resolves against what exists.
            for alias in child.names:
                target = f"{base}.{alias.name}"
                yield Import(target, base, child.lineno, lazy, bool(child.level))
        else:
            yield from _imports(child, package, inner)


def resolve(target: str) -> str | None:
    """The module of ours that an import names: the longest prefix that is one."""
    known = modules()
    while target:
        if target in known:
            return target
        target = target.rpartition(".")[0]
    return None
