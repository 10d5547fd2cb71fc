"""Owns the first half of the pipeline: config → spec → graph → plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelgen.archs.architecture import Architecture
from kernelgen.archs.registry import find_architecture
from kernelgen.cli.cache_type import SCALE_TENSORS, ScaleNames, narrow_cache, scale_names
from kernelgen.cli.model import ModelSource
from kernelgen.cli.quantisation import formats_of, split_config
from kernelgen.cli.tuned import refuse_untuned
from kernelgen.codegen.families import catalogue
from kernelgen.core.dtypes import dtype as dtype_named
from kernelgen.core.errors import ProblemList
from kernelgen.formats.stored import StoredMatrix
from kernelgen.hw import Device, parse_target
from kernelgen.ir.graph import Graph
from kernelgen.lower.float8_cache import with_float8_cache
from kernelgen.planner.plan import Plan
from kernelgen.planner.planner import DEFAULT_CONTEXT, Planner
from kernelgen.spec.config import told_by
from kernelgen.spec.model import ModelSpec
from kernelgen.spec.ranks import of_rank
from kernelgen.tables import Tables

DECODE_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MIXED_SIZES = (128, 512, 2048, 8192)
LARGEST_SIZE = 1 << 20
"""requests or tokens that a plan may be asked for: far beyond any device, before times overflow"""


@dataclass(frozen=True)
class Lowered:
    """A model as far as it does not depend on a target."""

    architecture: Architecture
    spec: ModelSpec
    graph: Graph
    matrices: Mapping[str, StoredMatrix] = field(default_factory=dict)
    """quantised matrices by parameter"""
    ignored: tuple[str, ...] = ()
    """expressions of checkpoint names that carry nothing"""
    notes: tuple[str, ...] = ()
    """what a person should know of the formats"""
    told: Mapping[str, Any] = field(default_factory=dict)
    """what was read of the config, by name"""
    scalars: Mapping[str, ScaleNames] = field(default_factory=dict)
    """checkpoint tensors that may hold the scales of a layer's keys and values, by parameter"""


def lowered(
    source: ModelSource, dtype: str, online: Path | None = None, cache: str = "auto", ranks: int = 1
) -> Lowered:
    """Config → spec → graph, matrices in the formats of the checkpoint or of the file `online`.

    `cache`: what keys and values are stored as: `fp8`, the type of activations (`bfloat16`,
    `float32`), or `auto`: fp8 where the checkpoint announces it, else the activations' type.
    `ranks`: as the first of so many has it, by the config alone: a checkpoint has all of it.
    """
    source, quantisation = split_config(source, online)
    architecture = find_architecture(source.config)
    spec = architecture.read(source.config)
    if ranks > 1:
        spec, source = of_rank(spec, ranks), replace(source, folder=None)
    graph = replace(architecture.lower(spec, dtype_named(dtype)), name=source.name)
    rules = architecture.checkpoint(spec, graph)
    formats = formats_of(source, quantisation, graph, rules, spec.stored, architecture.plain(spec))
    ignored = (*architecture.ignored(spec), *formats.ignored)
    told = told_by(architecture.read, source.config)
    notes, graph, scalars = formats.notes, formats.graph, dict[str, ScaleNames]()
    if narrow_cache(cache, dtype, formats.cache):
        graph, scalars = with_float8_cache(graph), dict(scale_names(rules))
        ignored = (*ignored, SCALE_TENSORS)
        notes = (*notes, "keys and values are kept as fp8 (e4m3), layers with a window excepted")
    elif formats.cache:
        notes = (*notes, f"keys and values are asked as {formats.cache} and kept as {cache}")
    return Lowered(architecture, spec, graph, formats.matrices, ignored, notes, told, scalars)


def plan_model(
    source: ModelSource,
    target: str,
    *,
    phase: str,
    size: int,
    context: int | None = None,
    fusion: bool = True,
    dtype: str = "bfloat16",
    tables: Tables | None = None,
    require_tuned: bool = False,
    invariant: bool = False,
    online: Path | None = None,
    cache: str = "auto",
    ranks: int = 1,
) -> Plan:
    """The plan of one phase at one size; imports neither torch nor triton.

    `tables`: without them those that ship. `require_tuned`: `CheckFailed` for a plan with a
    kernel that nobody has measured. `invariant`: the plan of a batch-invariant build. `online`: a
    file that says which matrices are quantised. `ranks`: the plan of one of so many.
    """
    device = parse_target(target)
    model = lowered(source, dtype, online, cache, ranks)
    graph = model.graph
    problems = ProblemList("plan")
    if size > LARGEST_SIZE:
        problems.add(f"size is {size}", allowed=f"1 to {LARGEST_SIZE}")
    most = model.spec.max_positions
    if context is None:
        context = min(DEFAULT_CONTEXT, most)
    elif context > most:
        problems.add(f"context is {context}", allowed=f"1 to {most}")
    problems.raise_if_any()
    families = catalogue(device, tables, require_tuned=require_tuned, invariant=invariant)
    planner = Planner(graph, device, device.target, families, fusion, context, invariant=invariant)
    plan = planner.plan(phase, size)
    refuse_untuned([plan], source.name, device.target)
    return plan


def all_plans(
    graph: Graph,
    device: Device,
    fusion: bool,
    tables: Tables | None = None,
    require_tuned: bool = False,
    invariant: bool = False,
) -> tuple[Plan, ...]:
    """A plan for every size of the manifest's ladder, decode first.

    `invariant`: a row has the same bits in all of them.
    """
    families = catalogue(device, tables, require_tuned=require_tuned, invariant=invariant)
    planner = Planner(graph, device, device.target, families, fusion, invariant=invariant)
    decode = tuple(planner.plan("decode", size) for size in DECODE_SIZES)
    return decode + tuple(planner.plan("mixed", size) for size in MIXED_SIZES)
