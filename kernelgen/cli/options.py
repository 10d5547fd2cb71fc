"""Owns the options that several verbs share, so that one spelling and one help text exist."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Switch(StrEnum):
    """`--fusion on|off`."""

    ON = "on"
    OFF = "off"


class Activations(StrEnum):
    """`--dtype`: what activations are computed in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Built-in name (see `kernelgen models`), config.json, checkpoint folder or hub id.",
        show_default=False,
    ),
]
Target = Annotated[str, typer.Option("--target", "-t", help="cpu, sm_90 or sm_90:h200.")]
Fusion = Annotated[Switch, typer.Option(help="off: one op a kernel, the same results.")]
Dtype = Annotated[Activations, typer.Option(help="Type of activations.")]
RequireTuned = Annotated[
    bool,
    typer.Option("--require-tuned", help="Refuse a plan with a kernel that nobody has measured."),
]
Invariant = Annotated[
    bool,
    typer.Option(
        "--batch-invariant",
        help="A token has the same bits whatever else is computed beside it; slower on GPUs.",
    ),
]
TablesFolder = Annotated[
    Path | None, typer.Option("--tables", metavar="FOLDER", help="Folder of tables. [shipped]")
]


class CacheType(StrEnum):
    """`--kv-cache-dtype`: what keys and values are stored as."""

    AUTO = "auto"
    FP8 = "fp8"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


KvCacheDtype = Annotated[
    CacheType,
    typer.Option(
        "--kv-cache-dtype",
        help="What keys and values are stored as; auto: as the checkpoint announces it.",
    ),
]
QuantizationConfig = Annotated[
    Path | None,
    typer.Option(
        "--quantization-config",
        help="JSON file: which matrices are quantised when they are loaded, and how.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
