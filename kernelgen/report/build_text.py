"""Owns a build as plain text: its summary, one kernel, the difference of two builds."""

from __future__ import annotations

from kernelgen.pack.diff import BuildDiff
from kernelgen.pack.inspect import KernelFacts, Summary
from kernelgen.report.figures import bytes_text
from kernelgen.report.tables import aligned


def summary_text(summary: Summary) -> str:
    """The build's name and figures, its libraries and its kernels."""
    lines = [f"{summary.source}: {summary.files} files, {bytes_text(summary.bytes)}"]
    width = max(map(len, summary.fields), default=0)
    lines += [f"  {key:<{width}}  {value}" for key, value in summary.fields.items()]
    lines += ["", f"libraries ({len(summary.libraries)})"]
    for library in summary.libraries:
        needs = f"{library.glibc or 'no glibc'} or newer, {', '.join(library.needed)}"
        lines.append(f"  {library.path}  {bytes_text(library.bytes)}  needs {needs}")
        lines.append(f"    exports {', '.join(library.exports)}")
    lines += ["", f"kernels ({len(summary.kernels)}; --kernel NAME shows one)"]
    rows = [(k.name, k.family, " → ".join(k.ops)) for k in summary.kernels]
    return "\n".join([*lines, *aligned(rows)])


def kernel_text(facts: KernelFacts, source: str) -> str:
    """One kernel: what it covers, then its source."""
    head = [
        f"{facts.name}: {facts.family} kernel, {facts.source}",
        f"  ops      {' → '.join(facts.ops)}",
        f"  variant  {facts.variant}",
        "",
    ]
    return "\n".join([*head, source.rstrip()])


def diff_text(diff: BuildDiff) -> str:
    """Manifest fields, files that came and went, and changed lines of generated text."""
    if diff.same:
        return "the builds are equal"
    lines: list[str] = []
    if diff.fields:
        lines.append(f"manifest ({len(diff.fields)} fields)")
        lines += [
            f"  {f.path}: {f.before or 'absent'} → {f.after or 'absent'}" for f in diff.fields
        ]
    lines += [f"- {path}" for path in diff.removed]
    lines += [f"+ {path}" for path in diff.added]
    for change in diff.changed:
        sizes = f"{bytes_text(change.bytes_before)} → {bytes_text(change.bytes_after)}"
        lines.append(f"~ {change.path}  {sizes}")
        lines += [f"    {line}" for line in change.lines]
    return "\n".join(lines)
