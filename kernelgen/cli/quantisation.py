"""Owns the formats of a named model: its config, its checkpoint's header, a user's file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from kernelgen.archs.weight_rules import TensorRule
from kernelgen.cli.checkpoint_header import read_headers
from kernelgen.cli.model import ModelSource
from kernelgen.core.dtypes import FLOAT16, DType
from kernelgen.core.errors import UsageError
from kernelgen.core.jsonio import load_object
from kernelgen.formats.announced import SIDE_FILES, read_announcement
from kernelgen.formats.announcement import WHERE, Announcement
from kernelgen.formats.assign import Experts, Held, Module, Part, Several, assign
from kernelgen.formats.online import Online, read_online
from kernelgen.formats.stored import EXPERT, StoredMatrix
from kernelgen.ir.graph import Graph
from kernelgen.ir.parameters import parameters
from kernelgen.ir.reformat import product_weights, router_weights, with_formats

_MOST_BYTES = 16 << 20
_WEIGHT = ".weight"


@dataclass(frozen=True)
class Quantisation:
    """What is said of a model's formats before its tensors are known."""

    announced: Mapping[str, Any] | None
    online: Online | None


@dataclass(frozen=True)
class Formats:
    """The graph in its formats, matrices by parameter, names that carry nothing, notes."""

    graph: Graph
    matrices: Mapping[str, StoredMatrix]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    cache: str = ""
    """what the checkpoint announces of the cache, in its own words"""


def split_config(source: ModelSource, online: Path | None) -> tuple[ModelSource, Quantisation]:
    """The model without its `quantization_config`, and what is said of its formats."""
    data = dict(source.config.data)
    announced = data.pop(WHERE, None)
    inner = data.get("text_config")  # where a model of several parts says it of this one
    if isinstance(inner, dict) and WHERE in inner:
        if announced not in (None, inner[WHERE]):
            where = f"{source.config.source}: text_config.{WHERE}"
            raise UsageError(f"is not what {WHERE} beside it says", where=where)
        announced = inner[WHERE]
        data["text_config"] = {k: v for k, v in inner.items() if k != WHERE}
    if announced is not None and not isinstance(announced, dict):
        raise UsageError("is no object", where=f"{source.config.source}: {WHERE}")
    if announced is None and source.folder is not None:
        side = [source.folder / name for name in SIDE_FILES if (source.folder / name).is_file()]
        if side:
            announced = dict(load_object(side[0], max_bytes=_MOST_BYTES))
            announced.setdefault("quant_method", _method(side[0].name))
    asked = None
    if online is not None:
        asked = read_online(load_object(online, max_bytes=_MOST_BYTES), str(online))
    plain = replace(source, config=replace(source.config, data=data))
    return plain, Quantisation(announced or None, asked)


def _method(name: str) -> str:
    return {"quantize_config.json": "gptq", "quant_config.json": "awq"}.get(name, "modelopt")


def formats_of(
    source: ModelSource,
    quantisation: Quantisation,
    graph: Graph,
    rules: Sequence[TensorRule],
    stored: DType,
    plain: Sequence[str] = (),
) -> Formats:
    """Every matrix in the format that it is stored in, or is to be quantised to.

    `plain`: expressions of modules that an announcement does not mean unless the checkpoint is at
    hand and says so.
    """
    if quantisation.announced is None and quantisation.online is None:
        return Formats(graph, {}, (), ())
    announcement: Announcement | None = None
    sizes = {
        p.name: tuple(d for d in p.type.shape if isinstance(d, int)) for p in parameters(graph)
    }
    if quantisation.announced is not None:
        announcement = read_announcement(quantisation.announced, stored == FLOAT16)
    header = read_headers(source.folder) if source.folder is not None else None
    if header is None and announcement is not None:
        announcement = announcement.but(plain)
    held, parameter = _held(graph, rules, sizes)
    found = assign(held, announcement, quantisation.online, header)
    matrices = {parameter[name]: matrix for name, matrix in found.matrices.items()} | found.parts
    kinds = {name: matrix.kind for name, matrix in matrices.items()}
    ignored, cache = _ignored(matrices, announcement), announcement.cache if announcement else ""
    return Formats(with_formats(graph, kinds), matrices, ignored, tuple(found.notes), cache)


def _held(
    graph: Graph, rules: Sequence[TensorRule], sizes: Mapping[str, tuple[int, ...]]
) -> tuple[Held, dict[str, str]]:
    """What the checkpoint's tensors hold, and the parameter of every module of one matrix."""
    products, routers = product_weights(graph), router_weights(graph)
    modules, parameter, others = dict[str, Module](), dict[str, str](), list[str]()
    several, experts = dict[str, Several](), dict[str, Experts]()
    for rule in rules:
        name, is_matrix = rule.name.removesuffix(_WEIGHT), rule.name.endswith(_WEIGHT)
        if (rule.take is not None or len(rule.shape) > 2) and rule.parameter not in products:
            modules[name] = Module(name, prod(rule.shape[:-1]), rule.shape[-1], product=False)
        elif rule.take is not None or len(rule.shape) > 2:
            several[name] = _with_part(several.get(name), rule, sizes[rule.parameter])
        elif rule.expert is not None and is_matrix and len(rule.shape) == 2:
            if rule.expert == 0:
                before, _, after = name.rpartition(".0.")
                stack = Experts(
                    f"{before}.{EXPERT}.{after}", rule.parameter, *sizes[rule.parameter]
                )
                experts[rule.parameter] = stack
        elif len(rule.shape) == 2 and is_matrix:
            modules[name] = Module(name, *rule.shape, rule.parameter in products)
            parameter[name] = rule.parameter
        elif is_matrix:
            others.append(name)
    plain = frozenset(name for name, full in parameter.items() if full in routers)
    return Held(modules, tuple(others), several, tuple(experts.values()), plain), parameter


def _with_part(held: Several | None, rule: TensorRule, shape: tuple[int, ...]) -> Several:
    """A tensor of several matrices with one parameter more."""
    part = Part(rule.parameter, shape, rule.take)
    before = held.parts if held is not None else ()
    return Several(rule.name, (*before, part), len(rule.shape) > 2)


def _ignored(
    matrices: Mapping[str, StoredMatrix], announcement: Announcement | None
) -> tuple[str, ...]:
    """Expressions of companions that a product of unquantised activations does not read."""
    suffixes: dict[str, None] = {}
    for matrix in matrices.values():
        if matrix.packing is not None:
            suffixes.update(dict.fromkeys(matrix.packing.unused))
            if matrix.packing.zero and not matrix.kind.zero:
                suffixes[matrix.packing.zero] = None
    found = [rf".+[._]{re.escape(suffix)}" for suffix in suffixes]
    if announcement is not None:
        found.append(r".+\.(?:[kvq]_scale|kv_scale|[kvq]_proj\.[kvq]_scale|output_scale)")
    return tuple(found)
