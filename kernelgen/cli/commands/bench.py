"""Owns `kernelgen bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import Activations


def bench(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_BUILD",
            help="Build folder or wheel, or a model as `build` takes it, which is built first.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="What a model is built for. [this GPU, else cpu]"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda[:i].")] = "auto",
    batch: Annotated[str, typer.Option(metavar="N,N…", help="Requests at once.")] = "1",
    prompt: Annotated[int, typer.Option(help="Tokens in, for each request.")] = 128,
    tokens: Annotated[int, typer.Option(help="Tokens out, for each request.")] = 64,
    weights: Annotated[
        str, typer.Option(metavar="DIR", help="Checkpoint folder, or random[:SEED].")
    ] = "random",
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each case.")] = 5,
    threads: Annotated[int | None, typer.Option(help="Worker threads of the CPU.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="cublas, sdpa, transformers, vllm or none. [cublas,sdpa on a GPU]",
        ),
    ] = None,
    kernels: Annotated[bool, typer.Option(help="Profile the kernels of a step, on a GPU.")] = True,
    start: Annotated[
        bool, typer.Option("--start", help="Also time fresh processes to their first token.")
    ] = False,
    dtype: Annotated[
        Activations | None, typer.Option(help="Type of activations of a model. [bfloat16]")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write every figure as JSON.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the tables as Markdown.")
    ] = None,
) -> None:
    """Measure whole steps, kernels, prompts and starts of a build, beside baselines."""
    from kernelgen.bench.case import Case, parse_batches
    from kernelgen.bench.options import BASELINES, CUBLAS, SDPA, Options
    from kernelgen.bench.run import run
    from kernelgen.cli.bench_results import BenchResults
    from kernelgen.cli.benchmark import parse_baselines, repeated, subject

    cases = tuple(Case(size, prompt, tokens) for size in parse_batches(batch))
    baselines = parse_baselines(baseline, BASELINES, (CUBLAS, SDPA))
    results = BenchResults(json, markdown)
    given = subject(model, target, None if dtype is None else dtype.value)
    command = repeated(
        model,
        target=target,
        device=None if device == "auto" else device,
        prompt=prompt,
        tokens=tokens,
        weights=None if weights == "random" else weights,
        rounds=None if rounds == 5 else rounds,
        threads=threads,
        baseline=baseline,
        no_kernels=not kernels,
        start=start,
        dtype=None if dtype is None else dtype.value,
    )
    with results:
        run(
            Options(
                build=given.build,
                cases=cases,
                command=command,
                device=device,
                weights=weights,
                threads=threads,
                rounds=rounds,
                baselines=baselines,
                demanded=baselines if baseline is not None else (),
                kernels=kernels,
                start=start,
                config=given.config,
            ),
            console.say,
            results.keep,
        )
