"""Owns `kernelgen build`."""

from __future__ import annotations

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
)


def build(
    model: Model,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="cpu or sm_NN[:device]; may be repeated. [cpu]"),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for wheel and build.")] = Path(
        "dist"
    ),
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Compilers at once. [all cores]")
    ] = None,
    fusion: Fusion = Switch.ON,
    dtype: Dtype = Activations.BFLOAT16,
    require_tuned: RequireTuned = False,
    batch_invariant: Invariant = False,
    tables: TablesFolder = None,
    quantization_config: QuantizationConfig = None,
    kv_cache_dtype: KvCacheDtype = CacheType.AUTO,
    json: Json = False,
) -> None:
    """Compile MODEL into one wheel and a readable build folder."""
    from kernelgen.cli.building import build_model
    from kernelgen.cli.model import resolve
    from kernelgen.cli.tuned import (
        open_tables,
        refuse_idle_demand,
        refuse_tuned_invariant,
        warning_of,
    )
    from kernelgen.hw import default_note
    from kernelgen.report.tuning_text import coverage_lines

    targets = list(dict.fromkeys(target or ["cpu"]))
    for text in targets:
        if note := default_note(text):
            console.say(note)
    refuse_idle_demand(targets, require_tuned)
    refuse_tuned_invariant(require_tuned, batch_invariant)
    source, opened = resolve(model), open_tables(tables)
    with (
        warning_of(opened),
        console.progress(f"building {source.name}", quiet=json) as progress,
    ):
        done = build_model(
            source,
            targets,
            out,
            jobs=jobs,
            fusion=fusion is Switch.ON,
            dtype=dtype.value,
            progress=progress,
            tables=opened,
            require_tuned=require_tuned,
            invariant=batch_invariant,
            online=quantization_config,
            cache=kv_cache_dtype.value,
        )
    if json:
        console.result_json(done)
        return
    cached = f", {done.cached} of {done.steps} steps from the cache" if done.steps else ""
    console.say(f"built {source.name} for {', '.join(targets)} in {done.seconds:.1f} s{cached}")
    for note in done.notes:
        console.say(note)
    for text, coverage in done.coverage.items():
        for line in coverage_lines(coverage):
            console.say(f"{text} {line}")
    console.result(f"{done.wheel}\n{done.folder}")
