"""Prints how long the files and functions of our tree are: look at what stands out, ask why.

Run: python tools/census.py [FOLDER ...]     (default: kernelgen and runtime/kernelgen_runtime)
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ("kernelgen", "runtime/kernelgen_runtime")
LONGEST = 5

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """One function: where it is, its lines, whether all parameters and the result are typed."""

    place: str
    lines: int
    typed: bool
    documented: bool


@dataclass(frozen=True)
class Source:
    """One file and what it holds."""

    path: Path
    lines: int
    comments: int
    documented: bool
    asserts: int
    raises: int
    dataclasses: int
    frozen: int
    functions: tuple[Function, ...]


def read_source(path: Path) -> Source:
    """Measures one Python file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, str(path))
    nodes = list(ast.walk(tree))
    decorations = [_dataclass(n) for n in nodes if isinstance(n, ast.ClassDef)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return Source(
        path=path,
        lines=text.count("\n"),
        comments=sum(token.type == tokenize.COMMENT for token in tokens),
        documented=ast.get_docstring(tree) is not None,
        asserts=sum(isinstance(n, ast.Assert) for n in nodes),
        raises=sum(isinstance(n, ast.Raise) for n in nodes),
        dataclasses=sum(kind is not None for kind in decorations),
        frozen=sum(kind == "frozen" for kind in decorations),
        functions=tuple(_function(path, n) for n in nodes if isinstance(n, _Function)),
    )


def _function(path: Path, node: _Function) -> Function:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [a for a in (node.args.vararg, node.args.kwarg) if a]
    typed = all(a.annotation or a.arg in ("self", "cls") for a in arguments)
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    place = f"{path}:{node.lineno} {node.name}"
    return Function(place, lines, typed and node.returns is not None, bool(ast.get_docstring(node)))


def _dataclass(node: ast.ClassDef) -> str | None:
    for decorator in node.decorator_list:
        text = ast.unparse(decorator)
        if text.partition("(")[0].rpartition(".")[2] == "dataclass":
            return "frozen" if "frozen=True" in text else "plain"
    return None


def spread(values: Sequence[int]) -> str:
    """Median, 90th percentile and maximum of `values`."""
    ordered = sorted(values)
    if not ordered:
        return "–"
    high = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return f"{statistics.median(ordered):g} / {high} / {ordered[-1]}"


def share(part: int, whole: int) -> str:
    """`part` of `whole` in percent."""
    return f"{100 * part / whole:.0f}%" if whole else "–"


def rows(sources: Sequence[Source], test_lines: int) -> list[tuple[str, str]]:
    """The table: one (what, figure) a line."""
    functions = [function for source in sources for function in source.functions]
    lines = sum(source.lines for source in sources)
    comments = sum(source.comments for source in sources)
    return [
        ("files", str(len(sources))),
        ("lines", f"{lines:,}"),
        ("file length median / p90 / max", spread([s.lines for s in sources])),
        ("functions", str(len(functions))),
        ("function length median / p90 / max", spread([f.lines for f in functions])),
        ("functions above 40 lines", str(sum(f.lines > 40 for f in functions))),
        ("module docstring", share(sum(s.documented for s in sources), len(sources))),
        ("function docstring", share(sum(f.documented for f in functions), len(functions))),
        ("typed functions", share(sum(f.typed for f in functions), len(functions))),
        ("comments per line", share(comments, lines)),
        ("assert : raise", f"{sum(s.asserts for s in sources)} : {sum(s.raises for s in sources)}"),
        (
            "dataclasses (frozen)",
            f"{sum(s.dataclasses for s in sources)} ({sum(s.frozen for s in sources)})",
        ),
        ("test lines per source line", f"{test_lines / lines:.2f}" if lines else "–"),
    ]


def main() -> None:
    """Prints the table, then the longest files and functions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / name for name in DEFAULT])
    folders: list[Path] = parser.parse_args().folders
    sources = [read_source(p) for folder in folders for p in sorted(folder.rglob("*.py"))]
    tests = [p.read_text(encoding="utf-8").count("\n") for p in (ROOT / "tests").rglob("*.py")]
    for what, figure in rows(sources, sum(tests)):
        print(f"{what:36} {figure}")
    print("\nlongest files")
    for source in sorted(sources, key=lambda s: -s.lines)[:LONGEST]:
        print(f"{source.lines:6}  {source.path}")
    functions = [function for source in sources for function in source.functions]
    print("\nlongest functions")
    for function in sorted(functions, key=lambda f: -f.lines)[:LONGEST]:
        print(f"{function.lines:6}  {function.place}")


if __name__ == "__main__":
    main()
