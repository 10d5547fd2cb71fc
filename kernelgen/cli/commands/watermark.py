"""Owns `kernelgen watermark detect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import Json

app = typer.Typer(
    help="Whether text was chosen with a watermark's key.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def detect(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            exists=True,
            dir_okay=False,
            help="Generated token ids, one text a line. [standard input]",
            show_default=False,
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Holds the key. [environment: KERNELGEN_WATERMARK_KEY]",
        ),
    ] = None,
    context_width: Annotated[int, typer.Option(metavar="N", help="As at generation.")] = 4,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, metavar="P", help="p-value up to which a text is marked.")
    ] = 0.01,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Checkpoint whose tokenizer reads the input as one plain text.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Score generated texts, prompts left out, against a key; every context counts once."""
    from dataclasses import asdict

    from kernelgen_runtime.sample.detect import detect as score
    from kernelgen_runtime.sample.watermark import Watermark

    from kernelgen.cli.detection import read_key, read_texts

    mark = Watermark(read_key(key_file), context_width)
    texts = read_texts(file, tokenizer)
    found = [(name, score(ids, mark, threshold)) for name, ids in texts]
    if json:
        console.result_json(
            [
                {"text": name, **asdict(one), "is_watermarked": one.is_watermarked}
                for name, one in found
            ]
        )
        return
    for name, one in found:
        console.result(f"{name}: {one}")


@app.callback()
def _group() -> None:
    """Keep `detect` a verb of its own, though it is the only one."""


app.command("detect")(detect)
