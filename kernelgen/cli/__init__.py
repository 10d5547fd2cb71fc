"""Thin verbs: build, plan, run, verify, bench, inspect, models, cache, doctor, demo."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line (`sys.argv` when `argv` is None) and exits the process."""
    # Imported here, so that using one module of this package does not load every verb.
    from kernelgen.cli.app import main as run

    run(argv)
