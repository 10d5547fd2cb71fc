"""Owns `kernelgen models`."""

from __future__ import annotations

from kernelgen.cli import console
from kernelgen.cli.options import Json

_COLUMNS = ("name", "architecture", "parameters", "layers", "hidden", "vocabulary", "positions")


def models(json: Json = False) -> None:
    """List the built-in models with their sizes."""
    from kernelgen.cli.builtin import builtin_list
    from kernelgen.report.figures import count_text
    from kernelgen.report.tables import table

    found = builtin_list()
    if json:
        console.result_json(list(found))
        return
    rows = [
        (
            model.name,
            model.architecture,
            count_text(model.parameters),
            *(f"{n:,}" for n in (model.layers, model.hidden, model.vocab, model.max_positions)),
        )
        for model in found
    ]
    console.render(table("", _COLUMNS, rows, right=_COLUMNS[2:]))
