"""The slice map of every tiny model: ranks' slices are the whole, and their products sum to it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Subject
from seeded import seeded_weights

from kernelgen.archs.weight_rules import TensorRule
from kernelgen.cli import main
from kernelgen.codegen.manifest import CheckpointTensor, Identity, TargetBuild, manifest
from kernelgen.codegen.weights import bound_weights
from kernelgen.core.dtypes import FLOAT32
from kernelgen.core.errors import UsageError
from kernelgen.ir.graph import Block, Graph, Node, Role
from kernelgen.ir.op import Trait
from kernelgen.pack.slices import Rank, RankWeight, slice_map
from kernelgen.spec.model import LatentSpec, MoeSpec
from kernelgen.verify.evaluate import Chunk, Evaluator, evaluate_block, feed

GRIDS = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]


def manifest_of(subject: Subject, graph: Graph, rules: tuple[TensorRule, ...]) -> dict[str, Any]:
    """The manifest with nothing in it but what loading needs."""
    nothing: Any = SimpleNamespace(
        page_bytes=1, state_bytes=0, groups=(), words=1, max_tokens=1, max_rows=1, max_pages=1
    )
    nothing.fields = ()
    plan: Any = SimpleNamespace(phase="decode", size=1, varying=None, to_json=dict, coverage=dict)
    plan.sizes = SimpleNamespace(capacity=SimpleNamespace(rows=1))
    made = TargetBuild(
        "cpu", (), bound_weights(graph, {}), nothing, nothing, (plan,), (0,), {}, None
    )
    given = [
        CheckpointTensor(
            **{f: getattr(r, f) for f in CheckpointTensor.__dataclass_fields__ if hasattr(r, f)}
        )
        for r in rules
    ]
    identity = Identity("tiny", "0", "test", "float32", {})
    return manifest(identity, subject.spec, [made], given, ())


class Cut:
    """A tiny model, its tensors, and its map for one grid of ranks."""

    def __init__(self, subject: Subject, tp: int, ep: int) -> None:
        self.graph = subject.architecture.lower(subject.spec, FLOAT32)
        rules = subject.architecture.checkpoint(subject.spec, self.graph)
        self.tensors = seeded_weights({r.name: r.shape for r in rules}, seed=5)
        about = manifest_of(subject, self.graph, rules)
        self.ranks = slice_map(about, tp, ep)
        (whole,) = slice_map(about)
        self.parameters = {w.name: self.assembled(w) for w in whole.weights}

    def assembled(self, weight: RankWeight) -> torch.Tensor:
        """A rank's matrix, put together from its slices; what none fills is NaN."""
        out = torch.full(weight.shape, torch.nan, dtype=torch.float64)
        for piece in weight.slices:
            found = self.tensors[piece.tensor].double().view(piece.view)
            found = found[tuple(slice(*r) for r in piece.box)]
            found = found if found.ndim == out.ndim else found[None]
            at = zip(piece.at, found.shape, strict=True)
            out[tuple(slice(start, start + size) for start, size in at)] = found
        return out

    def masked(self, rank: Rank, module: str) -> dict[str, torch.Tensor]:
        """All parameters in their whole size; those of a module zero where the rank has none."""
        found = dict(self.parameters)
        for weight in rank.weights:
            if (weight.cut == "whole" and len(weight.shape) < 3) or module not in weight.name:
                continue
            found[weight.name] = torch.zeros_like(found[weight.name])
            found[weight.name][tuple(slice(*r) for r in weight.box)] = self.assembled(weight)
        return found


def cuts(subject: Subject) -> Iterator[Cut]:
    """The model for every grid of ranks; without experts there are none to deal out."""
    has_experts = any(isinstance(layer.mlp, MoeSpec) for layer in subject.spec.layers)
    for tp, ep in GRIDS:
        if ep == 1 or has_experts:
            yield Cut(subject, tp, ep)
        else:
            with pytest.raises(UsageError, match="no stack of experts to deal out"):
                Cut(subject, tp, ep)


@pytest.mark.row("R-160")
def test_slices_of_a_rank_are_its_part_of_the_whole(subject: Subject) -> None:
    """Each element of it once, no byte more is asked for than the rank keeps."""
    for cut in cuts(subject):
        for weight in (weight for rank in cut.ranks for weight in rank.weights):
            whole = cut.parameters[weight.name]
            assert not whole.isnan().any(), weight.name
            part = cut.assembled(weight)
            assert torch.equal(part, whole[tuple(slice(*r) for r in weight.box)]), weight.name
            assert sum(s.elements for s in weight.slices) == math.prod(weight.shape)
            sizes = {s.tensor: cut.tensors[s.tensor].numel() for s in weight.slices}
            assert all(sizes[s.tensor] == math.prod(s.view) for s in weight.slices), weight.name


@pytest.mark.row("R-160")
def test_ranks_together_are_the_whole(subject: Subject) -> None:
    """What is cut lies on exactly one rank, but keys and values, which ranks may share evenly."""
    for cut in cuts(subject):
        check_cover(cut, {name for name in cut.parameters if every_rank_has(subject, name)})


def every_rank_has(subject: Subject, name: str) -> bool:
    """Routers; narrow products before a wide one that is cut; latent attention, whose heads have
    no matrices of their own before it."""
    part = name.split(".")
    latent = part[0] == "layers" and isinstance(
        subject.spec.layers[int(part[1])].attention, LatentSpec
    )
    return "router" in name or "_down." in name or (latent and ".attn." in name)


def check_cover(cut: Cut, everywhere: set[str]) -> None:
    for weights in zip(*(rank.weights for rank in cut.ranks), strict=True):
        name, whole = weights[0].name, cut.parameters[weights[0].name]
        count = torch.zeros(whole.shape, dtype=torch.int64)
        for weight in weights:
            count[tuple(slice(*r) for r in weight.box)] += 1
        copies = int(count.max())
        assert bool((count == copies).all()), name
        tp, ep = max(r.tensor for r in cut.ranks) + 1, max(r.expert for r in cut.ranks) + 1
        once = (1 if whole.ndim == 3 else ep) * (tp if weights[0].cut == "whole" else 1)
        if copies != once:
            assert ".attn.k." in name or ".attn.v." in name, name
            assert copies < tp * ep and copies % once == 0
        big = whole.ndim > 1 and name not in everywhere
        assert weights[0].cut != "whole" or not big, f"{name} is on every rank"


def products(block: Block) -> list[Node]:
    """Nodes whose results are summed over ranks, or gathered."""
    last = ("attn.o", "mlp.down", "mlp.shared.down", "head")
    return [
        node
        for node in block.nodes
        if node.op.has(Trait.EXPERT_SUM | Trait.GATHER) or node.name in last
    ]


@pytest.mark.row("R-160")
def test_partial_products_sum_to_the_whole(subject: Subject) -> None:
    """In float64, for every block: the ranks' products, each of its own weights, added up."""
    for cut in cuts(subject):
        check_sums(cut, subject)


def check_sums(cut: Cut, subject: Subject) -> None:
    ids = [i * subject.spec.vocab // 7 for i in range(7)]  # some on every rank
    step, seen = feed([Chunk(0, 0, ids)]), 0
    stream = torch.randn(len(ids), subject.spec.hidden, dtype=torch.float64)

    def values(parameters: dict[str, torch.Tensor], block: Block, layer: int | None) -> Any:
        capacity = subject.spec.max_positions
        one = Evaluator(cut.graph, parameters, dtype=torch.float64, capacity=capacity)
        streams = {v.name: stream for v in block.values if v.role is Role.STREAM}
        outside = [v for v in block.values if v.name not in block.producer]
        given = {v.name: one._outside(v, layer, streams, step) for v in outside}
        return evaluate_block(block, given, step.view)

    first = {placement.block: placement for placement in reversed(cut.graph.sequence)}
    for placement in first.values():
        block, layer = cut.graph.blocks[placement.block], placement.layer
        whole = values(cut.parameters, block, layer)
        for node in products(block):
            name = node.outputs[0]
            seen += 1
            if layer is not None and every_rank_has(subject, f"layers.{layer}.{name}.weight"):
                continue
            module = "" if layer is None else f"layers.{layer}.{name.split('.')[0]}."
            alone = [r for r in cut.ranks if r.expert == 0 or node.op.has(Trait.EXPERT_SUM)]
            parts = [values(cut.masked(rank, module), block, layer)[name] for rank in alone]
            bound = 1e-12 * max(1.0, float(whole[name].abs().max()))
            assert float((sum(parts) - whole[name]).abs().max()) <= bound, (block.name, name)
            differs = [float((part - whole[name]).abs().max()) > bound for part in parts]
            assert all(differs) == (len(parts) > 1), (block.name, name)
    assert seen >= 2 * len(cut.graph.blocks) - 2


def test_more_ranks_than_there_is_to_share_are_refused(subject: Subject) -> None:
    graph = subject.architecture.lower(subject.spec, FLOAT32)
    rules = subject.architecture.checkpoint(subject.spec, graph)
    about = manifest_of(subject, graph, rules)
    with pytest.raises(UsageError, match=r"(?s)cannot be shared by 24 ranks.*take fewer ranks"):
        slice_map(about, 24)
    for tp, ep in ((0, 1), (1, -1), (5000, 1)):
        with pytest.raises(UsageError, match=r"allowed: 1 to 1024"):
            slice_map(about, tp, ep)


def test_inspect_shows_the_map(
    subject: Subject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = subject.architecture.lower(subject.spec, FLOAT32)
    about = manifest_of(subject, graph, subject.architecture.checkpoint(subject.spec, graph))
    (tmp_path / "manifest.json").write_text(json.dumps(about))

    def inspect(*options: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["inspect", str(tmp_path), *options])
        return int(ended.value.code or 0), *capsys.readouterr()

    code, out, _ = inspect("--tp", "2")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0 and "2 tensor-parallel × 1 expert-parallel ranks" in out
    assert ["embed.weight", "vocabulary"] in [line[:2] for line in lines]
    assert ["layers.*.attn.o.weight", "row"] in [line[:2] for line in lines]
    code, out, _ = inspect("--tp", "2", "--json")
    assert code == 0 and json.loads(out)["ranks"] == json.loads(
        json.dumps([asdict(rank) for rank in slice_map(about, 2)])
    )
    code, _, err = inspect("--tp", "2", "--kernel", "x")
    assert code == 2 and "at a time; leave out the others" in err


HF = {"colwise": "column", "rowwise": "row", "colwise_gather_output": "vocabulary"}


@pytest.mark.row("R-160")
def test_the_cuts_are_those_that_transformers_plans(subject: Subject) -> None:
    """Its own tensor-parallel plan names the same matrices, where it has one for the class."""
    configuration = pytest.importorskip("transformers").models.auto.configuration_auto
    name = str(subject.config.get("model_type"))
    if name not in ("llama", "qwen3"):  # the others have a plan that leaves out most
        return
    plan = configuration.CONFIG_MAPPING[name].base_model_tp_plan
    graph = subject.architecture.lower(subject.spec, FLOAT32)
    about = manifest_of(subject, graph, subject.architecture.checkpoint(subject.spec, graph))
    ours = {s.tensor: w.cut for w in slice_map(about, 2)[0].weights for s in w.slices}
    seen = 0
    for pattern, how in plan.items():
        tensor = "model." + pattern.replace("*", "0") + ".weight"
        if how in HF and tensor in ours:
            assert ours[tensor] == HF[how], tensor
            seen += 1
    assert seen == 7
