"""The stage and the right answers of a sweep, with the candidates under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_trials import DEVICE, all_architectures, architectures, tiny

from kernelgen.core.dtypes import BFLOAT16
from kernelgen.formats import weight_format
from kernelgen.ir.op import Trait
from kernelgen.ir.reformat import product_weights, with_formats
from kernelgen.lower.float8_cache import with_float8_cache
from kernelgen.tables import Bucket, Tables
from kernelgen.tune.bundle import Candidate, Extents, Group, Launch, ModelFacts
from kernelgen.tune.collecting import argument_of, group_of
from kernelgen.tune.compiling import Compiled
from kernelgen.tune.facts import device_facts, model_facts
from kernelgen.tune.groups import ModelGroups, Planned, Tile
from kernelgen.tune.reference import Reference, references
from kernelgen.tune.stage import Scene, Stage
from kernelgen.tune.verdict import Verdict
from kernelgen.verify.interpreter import install, interpret

ELEMENTS = {
    "*bf16": torch.bfloat16,
    "*fp32": torch.float32,
    "*i32": torch.int32,
    "*u8": torch.uint8,
    "*i64": torch.int64,
}
CONTEXT = 40
"""a few pages, since an interpreter reads them"""


@dataclass(frozen=True)
class Toy:
    """Some kernels of a tiny model at one size, those of the plan first."""

    facts: ModelFacts
    planned: tuple[Planned, ...]


@cache
def toy(
    bucket: str, family: str, architecture: str = "", stored: str = "", float8: bool = False
) -> Toy:
    """Kernels of one family, planned for an H200; of the first architecture unless one is named.

    `stored`: the format that all matrices of its layers have; `float8`: of its cache.
    """
    install()
    model = tiny(architecture or architectures()[0], BFLOAT16)
    if stored:
        chosen = {w: weight_format(stored) for w in product_weights(model.graph) if "layers." in w}
        model = replace(model, graph=with_formats(model.graph, chosen), searches={})
    if float8:
        model = replace(model, graph=with_float8_cache(model.graph), searches={})
    groups = ModelGroups(
        model.graph, DEVICE, model.layout, Tables(Path("no rows")), "quick", 1.15,
        frozenset({family} - {""}),
    )  # fmt: skip
    facts = model_facts(model.graph, model.schema, model.args, model.vocab)
    planned = groups.at(Bucket.parse(bucket))
    return Toy(facts, tuple(sorted(planned, key=lambda p: not p.chosen)))


def stage_of() -> Stage:
    """In ordinary memory, with a cache so small that a few copies are beyond it."""
    return Stage(replace(device_facts(DEVICE), l2_bytes=1 << 16), "cpu")


def scene_of(made: Toy, shown: Group) -> Scene:
    """On a stage of its own."""
    return Scene.of(stage_of(), shown, made.facts)


def group(made: Toy, planned: Planned, context: int = CONTEXT) -> Group:
    """The group with launches that nothing has compiled."""
    nothing = {u.name: "not compiled" for t in planned.tiles for u in t.units}
    whole = group_of(planned, made.facts.name, Compiled({}, nothing), {})
    sizes = whole.extents.sizes
    extents = replace(Extents.of(sizes), context=max(context, sizes.tokens // sizes.rows))
    return replace(
        whole, extents=extents, candidates=tuple(_candidate(planned, t) for t in planned.tiles)
    )


def _candidate(planned: Planned, tile: Tile) -> Candidate:
    sizes = planned.kernel.launch_sizes(planned.sizes)
    launches = tuple(
        Launch(
            "0" * 64, "kernel", grid, 32, 0, True, False, 0,
            tuple(argument_of(p, sizes, iter(())) for p in one.parameters),
        )
        for one, grid in zip(tile.kernel.passes, tile.grids, strict=True)
    )  # fmt: skip
    choice = dict(tile.selected.point.choice)
    return Candidate(choice, launches, tile.scratch_bytes, tile.counters, tile.source, 1.0, "fast")


def run(tile: Tile, one: Candidate, scene: Scene, args: Any) -> None:
    """All passes of a candidate on the first copy."""
    for made, launch in zip(tile.kernel.passes, one.launches, strict=True):
        given = []
        for argument, said in zip(launch.arguments, made.unit.signature, strict=False):
            value = scene.source(argument, 0, args)
            plain = isinstance(value, int)
            given.append(value if plain else value.reshape(-1).view(ELEMENTS[said.type]))
        interpret(made.unit, launch.grid, given)


def judged(
    made: Toy, planned: Planned, context: int = CONTEXT
) -> Iterator[tuple[Scene, Reference, Tile, Verdict]]:
    """The first two tiles of a kernel, in every way of asking for tokens."""
    shown = group(made, planned, context)
    scene = scene_of(made, shown)
    for reference in references(scene):
        for tile, one in list(zip(planned.tiles, shown.candidates, strict=True))[:2]:
            reference.poison()
            run(tile, one, scene, reference.args)
            yield scene, reference, tile, reference.judge()
            assert not int(scene.counters.count_nonzero()), "counters are left behind"


def attends(name: str) -> bool:
    """Whether an architecture has keys and values of heads."""
    blocks = tiny(name, BFLOAT16).graph.blocks
    return any(node.op.has(Trait.ATTENTION) for block in blocks for node in block.nodes)


# Every family once; attention in every architecture, since windows and norms of heads differ.
CASES = [
    *(("decode:2", "attention_decode", name) for name in architectures() if attends(name)),
    ("decode:1", "gemv", architectures()[0]),
    ("decode:1", "rows", architectures()[0]),
    ("decode:8", "skinny", architectures()[-1]),
    ("decode:2", "head_sample", architectures()[-1]),
    ("mixed:32", "rows", architectures()[-1]),
    ("mixed:32", "attention_prefill", architectures()[0]),
]


@pytest.mark.parametrize(("bucket", "family", "architecture"), CASES)
def test_right_candidates_pass_and_wrong_results_do_not(
    bucket: str, family: str, architecture: str
) -> None:
    made = toy(bucket, family, architecture)
    for planned in made.planned[:1]:
        for scene, reference, _, verdict in judged(made, planned):
            assert 0 <= verdict.share <= 1, (planned.kernel.name, verdict)
            for name in reference._outputs():
                _spoilt(scene, reference, name)


def test_kernels_beside_states_are_staged() -> None:
    """A model that keeps states of requests has no block table for them."""
    stateful = [name for name in all_architectures() if name not in architectures()]
    made = toy("decode:1", "gemv", stateful[-1])
    for _, _, _, verdict in judged(made, made.planned[0]):
        assert 0 <= verdict.share <= 1


# One with everything that a format may have, and one with a scale for a block of rows.
@pytest.mark.parametrize(
    ("bucket", "family", "stored"),
    [
        ("decode:1", "gemv_packed", "int4_g32_f16_zp"),
        ("decode:1", "gemv_packed", "fp8_block128"),
        ("decode:8", "packed", "nvfp4"),
        ("decode:8", "packed", "int8_channel"),
    ],
)
def test_packed_matrices_are_made_and_judged(bucket: str, family: str, stored: str) -> None:
    made = toy(bucket, family, stored=stored)
    for scene, reference, _, verdict in judged(made, made.planned[0]):
        assert 0 <= verdict.share <= 1, (made.planned[0].kernel.name, verdict)
        for name in reference._outputs():
            _spoilt(scene, reference, name, by=1.5)  # scaled weights may be rounded


@pytest.mark.parametrize(
    ("bucket", "family"),
    [("decode:2", "attention_decode"), ("mixed:32", "attention_prefill"), ("mixed:32", "rows")],
)
def test_an_8_bit_cache_is_made_and_judged(bucket: str, family: str) -> None:
    made = toy(bucket, family, float8=True)
    scaled = [p for p in made.planned if "kv_scales" in " ".join(p.kernel.match.region.inputs)]
    for scene, reference, _, verdict in judged(made, scaled[0]):
        assert 0 <= verdict.share <= 1, (scaled[0].kernel.name, verdict)
        assert scene.layer(0) is not None
        for name in reference._outputs():
            _spoilt(scene, reference, name, by=1.5)


def routed() -> str:
    """An architecture whose layers choose experts."""
    for name in architectures():
        blocks = tiny(name, BFLOAT16).graph.blocks
        if any(node.op.has(Trait.EXPERTS) for block in blocks for node in block.nodes):
            return name
    raise AssertionError("no architecture has experts")


@pytest.mark.parametrize(
    "bucket", ["decode:1", pytest.param("mixed:32", marks=pytest.mark.soak)]
)  # interpreted pair by pair
def test_kernels_of_routed_experts_are_judged(bucket: str) -> None:
    """Every kernel of its plans that has to do with experts, whatever families there are."""
    made = toy(bucket, "", routed())
    mine = [
        p for p in made.planned
        if p.chosen
        and p.kernel.match.region.with_trait(Trait.EXPERTS | Trait.ROUTE)
    ]  # fmt: skip
    assert mine
    for planned in mine:
        for scene, reference, _, verdict in judged(made, planned):
            assert 0 <= verdict.share <= 1, (planned.kernel.name, verdict)
            for name in reference._outputs():
                leading = scene.block.value[name].type.leading
                scene.operand(name, 0)[int(reference.rows[leading][-1])] = 7
            assert reference.judge().share > 1


def _spoilt(scene: Scene, reference: Reference, name: str, by: float = 1.02) -> None:
    """One element that is off by a factor, and one that was never written, are both noticed."""
    out = scene.operand(name, 0)
    last = int(reference.rows[scene.block.value[name].type.leading][-1])
    flat = out[last].reshape(-1)
    at = int(flat.float().abs().argmax())
    kept = flat[at].clone()
    for wrong in (kept * by, torch.full_like(kept, float("nan"))):
        flat[at] = wrong
        assert reference.judge().share > 1, (name, float(kept), float(wrong))
    flat[at] = kept
    assert reference.judge().share <= 1


def test_shares_tell_more_than_right_or_wrong() -> None:
    """Narrow results are right to the last place or off by one: how near they were shows still."""
    toys = [toy("decode:2", "attention_decode"), toy("decode:8", "skinny")]
    shares = [verdict.share for made in toys for _, _, _, verdict in judged(made, made.planned[0])]
    assert len({round(s, 4) for s in shares}) > 1 and all(0 < s < 1 for s in shares), shares


@pytest.mark.parametrize("context", [9, 200])
def test_other_contexts_have_answers_of_their_own(context: int) -> None:
    made = toy("decode:1", "attention_decode")
    planned = made.planned[0]
    for scene, _, _, verdict in judged(made, planned, context):
        assert scene.requests.length == context
        assert 0 <= verdict.share <= 1, verdict


def test_contexts_that_take_turns_do_not_disturb_each_other() -> None:
    """What is the newest entry in one would be an old one in another, if they shared pages."""
    made = toy("decode:1", "attention_decode")
    planned = made.planned[0]
    long, short = (group(made, planned, context) for context in (CONTEXT, 9))
    stage = stage_of()
    first = 1 + Scene.pages_needed(stage, long, made.facts)
    pages = first + Scene.pages_needed(stage, short, made.facts)
    stage.pool(made.facts, pages, long.layers[0])
    scenes = (
        Scene.of(stage, long, made.facts),
        Scene.of(stage, short, made.facts, first),
    )
    answers = [(scene, references(scene)[0]) for scene in scenes]
    tile, one = planned.tiles[0], long.candidates[0]
    for scene, reference in (*answers, *answers):
        reference.poison()
        run(tile, one, scene, reference.args)
        assert reference.judge().share <= 1, scene.requests.length


def test_links_of_a_chain_read_different_memory() -> None:
    for family in ("gemv", "attention_decode"):
        made = toy("decode:1", family)
        scene = scene_of(made, group(made, made.planned[0]))
        assert 1 < scene.cold <= scene.copies
        weights = {
            name: {tensors[i % len(tensors)].data_ptr() for i in range(scene.copies)}
            for name, tensors in scene.weights.items()
            if len(tensors) > 1
        }
        assert all(len(places) > 1 for places in weights.values())
        assert (
            weights or len({(scene.layer(i), scene.page_set(i)) for i in range(scene.copies)}) > 1
        )
