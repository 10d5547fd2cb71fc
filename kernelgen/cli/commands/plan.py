"""Owns `kernelgen plan`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import (
    Activations,
    CacheType,
    Dtype,
    Fusion,
    Invariant,
    Json,
    KvCacheDtype,
    Model,
    QuantizationConfig,
    RequireTuned,
    Switch,
    TablesFolder,
    Target,
)
from kernelgen.core.errors import UsageError


class Phase(StrEnum):
    """`--phase`."""

    DECODE = "decode"
    MIXED = "mixed"


def plan(
    model: Model,
    target: Target = "cpu",
    phase: Annotated[Phase, typer.Option(help="One token a request, or chunks of prompts.")] = (
        Phase.DECODE
    ),
    batch: Annotated[
        int | None, typer.Option(min=1, help="Requests of a decode step. [1]", show_default=False)
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a mixed step. [512]", show_default=False)
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Cache entries each request reads. [1024]", show_default=False),
    ] = None,
    fusion: Fusion = Switch.ON,
    dtype: Dtype = Activations.BFLOAT16,
    require_tuned: RequireTuned = False,
    batch_invariant: Invariant = False,
    tables: TablesFolder = None,
    quantization_config: QuantizationConfig = None,
    kv_cache_dtype: KvCacheDtype = CacheType.AUTO,
    tp: Annotated[
        int,
        typer.Option(min=1, max=1024, metavar="N", help="Of one of N tensor-parallel ranks."),
    ] = 1,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every neighbouring pair: fused or not, and why.")
    ] = False,
    json: Json = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page that draws the plan.")
    ] = None,
) -> None:
    """Print the kernels of one step of MODEL, with cost and reasons."""
    from kernelgen.cli.model import resolve
    from kernelgen.cli.pipeline import plan_model
    from kernelgen.cli.tuned import (
        open_tables,
        refuse_idle_demand,
        refuse_tuned_invariant,
        warning_of,
    )
    from kernelgen.core.files import refuse_unwritable, write_atomic
    from kernelgen.hw import default_note
    from kernelgen.report import read_plan

    size = _size(phase, batch, tokens)
    if note := default_note(target):
        console.say(note)
    refuse_idle_demand([target], require_tuned)
    refuse_tuned_invariant(require_tuned, batch_invariant)
    if html is not None:
        refuse_unwritable(html)
    opened = open_tables(tables)
    with warning_of(opened):
        made = plan_model(
            resolve(model),
            target,
            phase=phase.value,
            size=size,
            context=context,
            fusion=fusion is Switch.ON,
            dtype=dtype.value,
            tables=opened,
            require_tuned=require_tuned,
            invariant=batch_invariant,
            online=quantization_config,
            cache=kv_cache_dtype.value,
            ranks=tp,
        ).to_json()
    if tp > 1:
        from kernelgen.archs.registry import find_architecture
        from kernelgen.cli.quantisation import split_config
        from kernelgen.spec.ranks import collectives

        config = split_config(resolve(model), None)[0].config
        sums = collectives(find_architecture(config).read(config), tp)
        console.say(f"the plan of one of {tp} ranks, which meet {sums} times a step")
    if html is not None:
        from kernelgen.report.plan_html import plan_html

        write_atomic(html, plan_html(read_plan(made)))
        console.say(f"wrote {html}")
    if json:
        console.result_json(made)
        return
    from kernelgen.report.plan_text import explain_text, plan_text

    view = read_plan(made)
    console.result(explain_text(view) if explain else plan_text(view))


def _size(phase: Phase, batch: int | None, tokens: int | None) -> int:
    if phase is Phase.DECODE:
        if tokens is not None:
            raise UsageError("--tokens belongs to --phase mixed", hint="use --batch N")
        return batch or 1
    if batch is not None:
        raise UsageError("--batch belongs to --phase decode", hint="use --tokens N")
    return tokens or 512
