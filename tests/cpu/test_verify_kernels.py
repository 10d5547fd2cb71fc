"""Kernels as generated pass every check; each sabotaged one is found out, by the check it fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path

import pytest
from verify_build import ISA, Small, build, program, small

from kernelgen.codegen.artefact import KernelSource
from kernelgen.core.errors import KernelgenError
from kernelgen.verify.built import read_build
from kernelgen.verify.checks import Check, Progress
from kernelgen.verify.supervisor import check_kernels

HANG_SECONDS = 10.0  # a step takes a tenth of a second on an idle machine


def missed(checks: Iterable[Check]) -> dict[str, set[str]]:
    """Kernel → the checks that it has missed."""
    found: dict[str, set[str]] = {}
    for check in checks:
        if not check.passed:
            found.setdefault(check.subject, set()).add(check.what)
    return found


@pytest.fixture(scope="module")
def subject() -> Small:
    return small()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_generated_kernels_pass(subject: Small, dtype: str, tmp_path: Path) -> None:
    built = read_build(build(tmp_path / "b", subject, dtype))
    seen: list[Progress] = []
    checks = check_kernels(built, progress=seen.append)
    assert not missed(checks), [c.detail for c in checks if not c.passed]
    assert {c.subject for c in checks} == {k.name for k in built.kernels}
    assert [p.done for p in seen] == list(range(1, len(built.kernels) + 1))
    kinds = {c.what for c in checks}
    assert kinds == {"values", "memory", "threads", "alone", "poison"}
    assert all(c.cases for c in checks)


def test_unfused_kernels_pass(subject: Small, tmp_path: Path) -> None:
    checks = check_kernels(read_build(build(tmp_path / "b", subject, "float32", fusion=False)))
    assert not missed(checks), [c.detail for c in checks if not c.passed]


def test_a_library_that_is_not_there_is_refused(subject: Small, tmp_path: Path) -> None:
    with pytest.raises(KernelgenError, match="avx512"):
        check_kernels(read_build(build(tmp_path / "b", subject, "float32")), isas=["avx512"])


# --- sabotage ----------------------------------------------------------------------------------


def declared(source: KernelSource, word: str, role: str) -> str:
    """C++ names for the first operand of a role, as floats, and for the elements of its row."""
    for index, operand in enumerate(source.signature):
        if operand.role == role:
            row = prod(int(d) for d in operand.shape[1:])
            return (
                f"[[maybe_unused]] float* const {word} = static_cast<float*>(operand[{index}]);"
                f" [[maybe_unused]] const size_t {word}_row = {row};\n  "
            )
    return ""


def after(code: str) -> Callable[[KernelSource], str]:
    """The kernel, and then `code` on one worker; see `declared` for the names it may use."""

    def sabotage(source: KernelSource) -> str:
        head = f"void kg_{source.kernel.name}("
        assert source.text.count(head) == 1
        names = "".join(declared(source, *pair) for pair in (("out", "output"), ("in", "input")))
        return source.text.replace(head, "static void whole(") + (
            f"\n{head}const kg::Step& step, void* const* operand, const kg::Worker& me) {{\n"
            f"  whole(step, operand, me);\n  me.sync();\n"
            f"  if (me.id == 0) {{ {names} {code} }}\n}}\n"
        )

    return sabotage


def replaced(pattern: str, text: str) -> Callable[[KernelSource], str]:
    """The kernel's own text with its one match of `pattern` changed."""

    def sabotage(source: KernelSource) -> str:
        changed, count = re.subn(pattern, text, source.text)
        assert count == 1, f"{source.kernel.name}: {count} places match {pattern}\n{source.text}"
        return changed

    return sabotage


def kernel_with(sources: Iterable[KernelSource], *ops: str, phase: str = "") -> KernelSource:
    """The first kernel that covers all the named ops; `phase` decode: one that stores keys too."""
    for source in sources:
        stores = any(name.endswith(".cache") for name in source.kernel.ops)
        if set(ops) <= set(source.kernel.ops) and (not phase or stores == (phase == "decode")):
            return source
    raise AssertionError(f"no kernel covers {ops}")


# What is done to a kernel, and the checks of which at least one has to miss it.
ARITHMETIC = {
    "window one too wide": (replaced(r"(attention<[^;]*?), 8\b", r"\1, 9"), "values"),
    "score scale missing": (replaced(r"\b0\.05f\b", "1.0f"), "values"),
    "residual scale missing": (replaced(r" \* 0\.26f", ""), "values"),
    "last input left out": (
        replaced(r"\brow\[i\] = (.+);(?=\n  \};)", r"row[i] = i == 63 ? Element{} : \1;"),
        "values",
    ),
}
READS_PADDING = (
    "for (int t = 1; t < step.tokens; ++t) if (step.rows[t] < 0) out[0] += 0 * in[t * in_row];"
)
BEHAVIOUR = {
    "last column not written": (after("out[step.tokens * out_row - 1] = 0.0f / 0.0f;"), "values"),
    "one element too early": (after("out[-1] = 1;"), "memory"),
    "input changed": (after("in[0] += 1;"), "memory"),
    "page 0 written": (after("step.cache[5] = 1;"), "memory"),
    "other slot written": (after("step.last_sampled[step.row_slot[0] + 1] = 1;"), "memory"),
    "depends on threads": (after("if (me.count == 3) out[0] *= 1.0000002f;"), "threads"),
    "depends on company": (after("if (step.tokens > 1) out[0] *= 1.0000002f;"), "alone"),
    "reads padding": (after(READS_PADDING), "poison"),
    "crashes": (after("*(volatile int*)8 = 1;"), "ends"),
    "hangs": (after("for (volatile int i = 0;; i = 1) if (i > 1) break;"), "ends"),
}


def test_wrong_arithmetic_is_found(subject: Small, tmp_path: Path) -> None:
    made = program(subject, "float32").kernels
    victims = {
        "window one too wide": kernel_with(made, "attn", phase="mixed"),
        "score scale missing": kernel_with(made, "attn", phase="decode"),
        "residual scale missing": kernel_with(made, "mlp.residual"),
        "last input left out": kernel_with(made, "mlp.gate"),
    }
    windows = [s for s in made if re.search(r"attention<[^;]*?, 8\b", s.text)]
    victims["window one too wide"] = kernel_with(windows, "attn", phase="mixed")
    expected = {victims[what].kernel.name: check for what, (_, check) in ARITHMETIC.items()}
    mutations = {victims[what].kernel.name: change for what, (change, _) in ARITHMETIC.items()}
    assert len(mutations) == len(ARITHMETIC)
    built = read_build(build(tmp_path / "b", subject, "float32", mutations=mutations))
    found = missed(check_kernels(built, kernels=list(mutations)))
    for name, check in expected.items():
        assert check in found.get(name, ()), (name, found)


def test_wrong_behaviour_is_found(subject: Small, tmp_path: Path) -> None:
    """Every fault in a kernel of its own, all in one library: none hides another."""
    made = program(subject, "float32").kernels
    able = [s for s in made if any(o.role == "output" for o in s.signature)]
    able = [s for s in able if "sample" not in s.kernel.ops and "head" not in s.kernel.ops]
    # The last faults need no input: they go to the kernels that have none, the embedding above all.
    able.sort(key=lambda s: any(o.role == "input" for o in s.signature))
    pairs = list(zip(reversed(BEHAVIOUR.items()), able, strict=False))
    assert len(pairs) == len(BEHAVIOUR), [s.kernel.name for s in able]
    plan = {source.kernel.name: (what, *fault) for (what, fault), source in pairs}
    mutations = {name: change for name, (_, change, _) in plan.items()}
    built = read_build(build(tmp_path / "b", subject, "float32", mutations=mutations))
    checks = check_kernels(built, kernels=list(mutations), step_seconds=HANG_SECONDS)
    found = missed(checks)
    for name, (what, _, check) in plan.items():
        assert check in found.get(name, ()), (what, name, found.get(name))
    ends = {plan[c.subject][0]: c.detail for c in checks if c.what == "ends"}
    assert "SIGSEGV" in ends["crashes"] and "hung" in ends["hangs"]


def test_wrong_choices_are_found(subject: Small, tmp_path: Path) -> None:
    """The greedy choice everywhere: right for the rows that ask for it, wrong for the others."""
    source = kernel_with(program(subject, "float32").kernels, "sample")
    logits, sampled = (
        next(i for i, o in enumerate(source.signature) if o.role == role)
        for role in ("input", "output")
    )
    width = int(source.signature[logits].shape[1])
    greedy = (
        "for (int b = 0; b < step.logit_rows; ++b) { const int row = step.logit_rows_of[b];"
        f" if (row < 0) continue; const float* x = static_cast<float*>(operand[{logits}])"
        f" + (size_t)b * {width}; int best = 0;"
        f" for (int i = 1; i < {width}; ++i) if (x[i] > x[best]) best = i;"
        f" static_cast<int*>(operand[{sampled}])[b] = best;"
        " step.last_sampled[step.row_slot[row]] = best; }"
    )
    built = read_build(
        build(tmp_path / "b", subject, "float32", mutations={source.kernel.name: after(greedy)})
    )
    found = missed(check_kernels(built, kernels=[source.kernel.name]))
    assert found == {source.kernel.name: {"values"}}
    assert built.libraries().keys() == {ISA}
