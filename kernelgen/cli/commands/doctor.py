"""Owns `kernelgen doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import Json


def doctor(
    json: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out measurements.")] = False,
) -> None:
    """Say what this machine has, what it lacks, how fast memory is read."""
    from kernelgen.cli.bandwidth import bandwidth_finding
    from kernelgen.cli.machine import machine_findings
    from kernelgen.report.tables import table

    findings = list(machine_findings())
    if not quick:
        findings.insert(-1, bandwidth_finding())
    failed = [finding for finding in findings if finding.ok is False]
    if json:
        console.result_json({"ok": not failed, "findings": findings})
    else:
        order = list(dict.fromkeys(finding.topic for finding in findings))
        findings.sort(key=lambda finding: order.index(finding.topic))
        marks = {None: "", True: "ok", False: "FAIL"}
        rows = [
            (f.topic, f.name, marks[f.ok], f"{f.text}; {f.hint}" if f.hint else f.text)
            for f in findings
        ]
        console.render(table("", ["topic", "what", "", "found"], rows))
    if failed:
        raise typer.Exit(1)
