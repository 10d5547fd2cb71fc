"""Who may import whom, as one table checked from the syntax tree, imports inside functions too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import pytest
from source_tree import PACKAGES, Import, Module, modules, read_module, resolve


@dataclass(frozen=True)
class Row:
    """`ours`: packages of ours; `outside`: other libraries at import time; `lazy`: those, and
    packages of ours behind "+", only inside functions."""

    ours: str = ""
    outside: str = ""
    lazy: str = ""


# The compiler. Every package may import itself and `kernelgen` (its version).
_SEMANTICS = "core formats spec ir ops lower"
_PLAN = f"{_SEMANTICS} hw tables planner"
TABLE = {
    "core": Row(),
    "formats": Row("core", outside="numpy"),  # the table itself imports it only when asked
    "hw": Row("core"),
    "spec": Row("core"),
    "ir": Row("core formats spec", lazy="torch"),  # meaning of expressions, when asked for
    "ops": Row("core spec ir", lazy="torch"),  # references import torch only when called
    "lower": Row("core spec ir ops"),
    "archs": Row("core spec ir ops lower"),  # discovery; it imports no architecture by name
    "archs.*": Row("core spec ir ops lower archs"),
    "archs.*.reference": Row("core spec", outside="torch"),  # a plain model: no ops of ours
    "tables": Row("core hw"),
    "planner": Row("core hw spec ir ops tables"),
    "codegen": Row("core formats hw spec ir ops tables planner", outside="jinja2"),
    "compile": Row("core hw codegen", lazy="triton"),  # in the processes that it starts
    "verify": Row(
        f"{_SEMANTICS} archs compile",
        outside="numpy",
        lazy="torch tvm_ffi safetensors triton",  # triton: its interpreter, in tests of kernels
    ),
    "tune": Row(f"{_PLAN} archs codegen compile verify", outside="numpy", lazy="torch ray"),
    "pack": Row("core spec planner compile tables"),
    "report": Row(f"{_PLAN} codegen compile verify tune pack", outside="rich"),
    # It measures with the runtime, and with the engines that it is compared with.
    "bench": Row(
        "core hw pack report",
        outside="rich",
        lazy="torch transformers vllm +kernelgen_runtime",
    ),
    "cli": Row(
        f"{_PLAN} archs codegen compile verify tune pack report bench",
        outside="typer rich numpy",
        lazy="gguf huggingface_hub safetensors tokenizers torch +kernelgen_runtime",
    ),
}

# The runtime: each part may import those before it. Never `kernelgen`; itself only relatively,
# since a serving wheel holds it under another name.
RUNTIME_ORDER = (
    *("errors", "clock", "buffers", "artifact", "device", "sample", "guide", "memory", "weights"),
    *(
        "text",
        "schedule",
        "config",
        "asked",
        "launch",
        "engine",
        "scoring",
        "generation",
        "speculate",
        "llm",
    ),
    *("chat", "batch", "server", "commands", "cli"),
)
RUNTIME_OUTSIDE = ["torch", "numpy", "tvm_ffi", "safetensors", "tokenizers", "jinja2", "rich"]
SERVE_OUTSIDE = ["starlette", "uvicorn", "uvloop", "msgspec", "prometheus_client", "yaml", "ray"]
LAZY_OUTSIDE = {"guide": ["llguidance"]}  # inside functions only: an extra that may be missing


def row_name(module: str) -> str:
    """The row of TABLE that speaks for a module of the compiler."""
    parts = module.split(".")[1:]
    if parts[:1] == ["archs"] and len(parts) > 1 and f"kernelgen.archs.{parts[1]}" in _folders():
        return "archs.*.reference" if parts[2:3] == ["reference"] else "archs.*"
    return parts[0]


def _folders() -> set[str]:
    return {m.name for m in modules().values() if m.is_package and m.name.count(".") == 2}


def _is_ours(target: str, package: str) -> bool:
    return target == package or target.startswith(package + ".")


def compiler_faults(module: Module) -> list[str]:
    """What a module of `kernelgen` imports against the table."""
    if module.name in ("kernelgen", "kernelgen.__main__"):
        return []
    name = row_name(module.name)
    if name not in TABLE:
        return [f"{module.path}: kernelgen.{name} has no row in TABLE: say what it may import"]
    return [
        f"{module.path}:{line.line}: {name} must not import {line.target}"
        + ("" if line.lazy else " at import time")
        for line in module.imports
        if not _allowed(module.name, name, line)
    ]


def _allowed(importer: str, name: str, line: Import) -> bool:
    row = TABLE[name]
    if _is_ours(line.target, "kernelgen"):
        target = resolve(line.target) or line.target
        if target == "kernelgen":
            return True
        other = row_name(target)
        if other == "archs.*" or other == "archs.*.reference":
            return importer.split(".")[:3] == target.split(".")[:3]  # an architecture by name
        return other in (name, *row.ours.split())
    top = line.target.partition(".")[0]
    if _is_ours(line.target, "kernelgen_runtime"):
        return line.lazy and "+kernelgen_runtime" in row.lazy.split()
    known = {*row.outside.split(), *(row.lazy.split() if line.lazy else ())}
    return top in known or top in sys.stdlib_module_names


def runtime_faults(module: Module) -> list[str]:
    """What a module of `kernelgen_runtime` imports against the order."""
    if module.name in ("kernelgen_runtime", "kernelgen_runtime.__main__"):
        return []
    part = module.name.split(".")[1]
    if part not in RUNTIME_ORDER:
        return [f"{module.path}: {part} has no place in RUNTIME_ORDER"]
    return [
        f"{module.path}:{line.line}: {part} must not import {line.target}"
        for line in module.imports
        if not _runtime_allowed(part, line)
    ]


def _runtime_allowed(part: str, line: Import) -> bool:
    if _is_ours(line.target, "kernelgen_runtime"):
        target = resolve(line.target) or line.target
        other = target.split(".")[1] if "." in target else ""
        before = RUNTIME_ORDER[: RUNTIME_ORDER.index(part) + 1]
        return line.relative and (other in before or not other)
    top = line.target.partition(".")[0]
    outside = {*RUNTIME_OUTSIDE, *(SERVE_OUTSIDE if part == "server" else ())}
    outside |= {*LAZY_OUTSIDE.get(part, ())} if line.lazy else set()
    return top in outside or top in sys.stdlib_module_names


def test_every_imported_module_exists() -> None:
    faults = [
        f"{module.path}:{line.line}: no module {line.module}"
        for module in modules().values()
        for line in module.imports
        if line.module.partition(".")[0] in PACKAGES and line.module not in modules()
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.row("R-037")
def test_every_import_is_in_the_table() -> None:
    faults = [
        fault
        for module in modules().values()
        for fault in (
            compiler_faults(module)
            if _is_ours(module.name, "kernelgen")
            else runtime_faults(module)
        )
    ]
    assert not faults, "\n".join(faults)


HEAVY = "torch numpy triton tvm_ffi transformers jinja2 huggingface_hub safetensors tokenizers"


@pytest.mark.parametrize("start", ["kernelgen.cli.app", "kernelgen.planner", "kernelgen.archs"])
def test_starting_loads_nothing_heavy(start: str) -> None:
    code = (
        f"import sys, importlib; importlib.import_module({start!r}); "
        f"print([name for name in {HEAVY.split()!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=PACKAGES["kernelgen"].parent,
    )
    assert done.stdout == "[]\n", done.stderr


def test_no_cycles_between_modules() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module in modules().values():
        for line in module.imports:
            target = resolve(line.target)
            if target and target != module.name:
                graph[module.name].add(target)
    _assert_acyclic(graph)


def test_no_cycles_between_packages() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module in modules().values():
        for line in module.imports:
            target = resolve(line.target)
            here, there = _unit(module.name), _unit(target or "")
            if there and here != there:
                graph[here].add(there)
    _assert_acyclic(graph)


def _unit(module: str) -> str:
    parts = module.split(".")
    if len(parts) < 2:
        return ""  # the top packages hold a version and nothing else
    if parts[0] == "kernelgen" and row_name(module).startswith("archs.*"):
        return ".".join(parts[:3])
    return ".".join(parts[:2])


def _assert_acyclic(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_every_module_opens_with_a_sentence() -> None:
    faults = []
    for module in modules().values():
        text = ast.get_docstring(module.tree) or ""
        first = text.partition("\n\n")[0]
        if not first.endswith((".", "`")) or not first[:1].isupper():
            faults.append(f"{module.path}: must open with a docstring sentence, has {first!r}")
        elif module.is_package and text != first:
            faults.append(f"{module.path}: a package speaks in one sentence")
    assert not faults, "\n".join(faults)


# What the check must catch: one line of source each, put into a module of that name.
BROKEN = {
    "planner imports codegen": ("kernelgen.planner.x", "import kernelgen.codegen"),
    "inside a function": ("kernelgen.planner.x", "def f():\n    from kernelgen import codegen"),
    "for type checking only": (
        "kernelgen.spec.x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kernelgen.ir",
    ),
    "torch at import time": ("kernelgen.ops.x", "import torch"),
    "torch in the planner": ("kernelgen.planner.x", "def f():\n    import torch.nn"),
    "compiler imports runtime": ("kernelgen.pack.x", "import kernelgen_runtime"),
    "unknown package": ("kernelgen.extra.x", "import json"),
    "runtime imports compiler": ("kernelgen_runtime.memory.x", "from kernelgen.core import digest"),
    "runtime by its own name": (
        "kernelgen_runtime.memory.x",
        "from kernelgen_runtime.errors import shown",
    ),
    "runtime imports to the right": ("kernelgen_runtime.artifact.x", "from ..memory import pool"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_check_sees(case: str, tmp_path) -> None:
    name, text = BROKEN[case]
    path = tmp_path / "x.py"
    path.write_text(text)
    module = read_module(path, name)
    ours = name.startswith("kernelgen.")
    assert compiler_faults(module) if ours else runtime_faults(module)
