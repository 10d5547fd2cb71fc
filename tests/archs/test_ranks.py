"""Plans of one of several ranks: what it moves, what it cannot share, how often ranks meet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import HERE, folders, subject_of

from kernelgen.archs.registry import builtin_config, find_architecture
from kernelgen.cli import main
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import lowered
from kernelgen.core.errors import UsageError
from kernelgen.planner.cost import unavoidable_bytes
from kernelgen.planner.planner import plan_sizes
from kernelgen.spec.config import ConfigFile
from kernelgen.spec.model import ModelSpec, MoeSpec
from kernelgen.spec.ranks import collectives, of_rank

SUBJECT = next(
    s for s in (subject_of(f) for f in folders() if f.parent != HERE) if "text_config" in s.config
)
CONTEXT = 8192
# GB a step of one token at that context: the sums of its matrices, caches and states by hand.
MOVED = {8: 23.4, 16: 15.2}


@pytest.mark.row("R-160")
@pytest.mark.parametrize("ranks", sorted(MOVED))
def test_a_rank_of_the_largest_model_moves_its_share(ranks: int) -> None:
    """Experts' bytes follow from the narrow copy's width, and no share of them is filled up."""
    graph = lowered(resolve("kimi-k3"), "bfloat16", ranks=ranks).graph
    sizes = plan_sizes("decode", 1, CONTEXT)
    of_block = [unavoidable_bytes(block, sizes) for block in graph.blocks]
    moved = sum(of_block[placement.block] for placement in graph.sequence)
    assert moved / 1e9 == pytest.approx(MOVED[ranks], rel=0.01)


def published() -> ModelSpec:
    config = builtin_config("kimi-k3")
    return find_architecture(config).read(config)


def test_what_does_not_divide_is_named() -> None:
    with pytest.raises(UsageError) as raised:
        of_rank(published(), 7)
    for what in ("96 heads", "33792 columns of an MLP", "3072 columns of an expert"):
        assert f"is 7 (allowed: what divides {what})" in str(raised.value)


def test_ranks_meet_behind_every_part_and_before_a_norm_of_their_sum() -> None:
    spec = published()
    assert collectives(spec, 1) == 0
    assert collectives(spec, 8) == 2 * 93 + 92 + 2


def test_a_rank_has_its_share_of_every_part() -> None:
    spec = SUBJECT.spec
    assert replace(of_rank(spec, 1), layers=spec.layers) == spec
    for rank, whole in zip(of_rank(spec, 2).layers, spec.layers, strict=True):
        assert rank.attention.heads * 2 == whole.attention.heads
        if isinstance(whole.mlp, MoeSpec):
            assert isinstance(rank.mlp, MoeSpec) and rank.mlp.router == whole.mlp.router
            assert rank.mlp.expert.intermediate * 2 == whole.mlp.expert.intermediate


def test_the_plan_says_whose_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(SUBJECT.config)))
    said = {}
    for ranks in ("1", "2"):
        with pytest.raises(SystemExit) as ended:
            main(["plan", str(tmp_path), "--tp", ranks, "--json"])
        out, err = capsys.readouterr()
        assert not ended.value.code and ("one of 2 ranks, which meet 19 times" in err) == (
            ranks == "2"
        )
        said[ranks] = json.loads(out)
    assert said["2"]["floor_bytes"] < said["1"]["floor_bytes"]


def test_a_rank_reads_no_checkpoint(tmp_path: Path) -> None:
    """A folder's tensors are those of all ranks."""
    (tmp_path / "config.json").write_text(json.dumps(dict(SUBJECT.config)))
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    source = replace(resolve(str(tmp_path)), config=ConfigFile("config.json", SUBJECT.config))
    assert lowered(source, "float32", ranks=2).spec.vocab * 2 == SUBJECT.spec.vocab
