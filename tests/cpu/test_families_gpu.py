"""What GPU families cover, refuse and choose, on every device that is described."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from planner_toys import (
    ARCHITECTURES,
    EIGHT_B,
    ODD,
    ONE_B,
    SIX_TENTHS_B,
    SMALL,
    TWO_B,
    Shape,
    decoder,
    tiny_graph,
)

from kernelgen.codegen.families import catalogue
from kernelgen.codegen.families.triton_block import Footprint
from kernelgen.codegen.families.triton_decode import DecodeProblem, DecodeTile
from kernelgen.codegen.families.triton_gemm import GemmTile, gemm
from kernelgen.codegen.families.triton_gemv import GemvTile, gemv
from kernelgen.codegen.families.triton_product import Product
from kernelgen.codegen.families.triton_skinny import skinny
from kernelgen.core.jsonio import dumps
from kernelgen.hw import devices, parse_target
from kernelgen.hw.device import Device
from kernelgen.planner.family import Match, Refusal
from kernelgen.planner.plan import COUNTERS, SCRATCH, Launch, Plan
from kernelgen.planner.planner import Planner
from kernelgen.tables import Tables

GPUS = [device for device in devices() if not device.is_cpu]
SMS = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"]
H200 = parse_target("sm_90:h200")
DENSE = [SIX_TENTHS_B, EIGHT_B, ONE_B, TWO_B, ODD]


@cache
def planned(
    model: str | Shape, phase: str, size: int, device: Device = H200, fusion: bool = True
) -> Plan:
    """A plan of an architecture's smallest config, or of a shape."""
    graph = tiny_graph(model) if isinstance(model, str) else decoder(model)
    families = catalogue(device, Tables(Path("no rows")))  # what the model alone says
    return Planner(graph, device, device.target, families, fusion).plan(phase, size)


def in_layer(plan: Plan, layer: int = 0) -> list[Launch]:
    return [launch for launch in plan.launches if launch.layer == layer]


def product(rows: int, n: int, k: int, *, matrices: int = 1) -> Product:
    moved = 2 * matrices * n * k
    return Product(rows, k, ((n, matrices),), 16, 16, 16, "bfloat16", None, 2, moved, moved * rows)


@pytest.mark.parametrize(
    ("name", "sm"),
    [*((SMALL, sm) for sm in SMS), *((name, "sm_89") for name in ARCHITECTURES)],
)
def test_every_architecture_and_every_sm_have_plans(name: str | Shape, sm: str) -> None:
    device = parse_target(sm)
    for phase, size in (("decode", 1), ("decode", 24), ("mixed", 128)):
        plan = planned(name, phase, size, device)
        covered = [op for launch in in_layer(plan) for op in launch.kernel.ops]
        block = plan.graph.blocks[plan.graph.sequence[1].block]
        assert sorted(covered) == sorted(n.name for n in block.nodes if n.op.kind != "view")
        assert dumps(plan.to_json())


@pytest.mark.parametrize("model", DENSE, ids=lambda m: str(m.hidden))
def test_at_most_five_kernels_a_layer_in_decode(model: Shape) -> None:
    plan = planned(model, "decode", 1)
    for layer in range(len(plan.graph.sequence) - 2):
        launches = in_layer(plan, layer)
        assert sum(1 + len(launch.price.passes) for launch in launches) <= 5


def test_the_plan_of_a_dense_layer_is_the_expected_one() -> None:
    found = [
        (x.kernel.match.family.name, x.kernel.name) for x in in_layer(planned(EIGHT_B, "decode", 1))
    ]
    assert found == [
        ("gemv", "norm_attn_q_k_v"),
        ("attention_decode", "norm_insert_attn"),
        ("gemv", "attn_o_residual"),
        ("gemv", "norm_mlp_gate_up_act"),
        ("gemv", "mlp_down_residual"),
    ]


def test_families_follow_the_size() -> None:
    for phase, size, family in (
        ("decode", 1, "gemv"),
        ("decode", 32, "ring"),
        ("mixed", 512, "gemm_tma"),
    ):
        plan = planned(EIGHT_B, phase, size)
        down = next(x for x in in_layer(plan) if "mlp.down" in x.kernel.ops)
        assert down.kernel.match.family.name == family


def test_refusals_name_ops_numbers_and_the_cost_of_a_boundary() -> None:
    fusions = {(f.a, f.b): f for f in planned(EIGHT_B, "decode", 1).fusions}
    refused = {pair: f.reason for pair, f in fusions.items() if not f.taken}
    assert "sums over all 4096 columns of attn" in refused["attn", "attn.o"]
    assert "a kernel boundary (1.2 µs) is the barrier" in refused["attn", "attn.o"]
    assert "needs all 4096 columns of a row" in refused["attn.residual", "mlp_norm.stat"]
    assert "mlp.down sums over all 12288 columns" in refused["mlp.act", "mlp.down"]
    assert "whole heads of 128 columns" in refused["attn.q", "attn.q_norm"]
    assert "is also read by mlp.residual" in refused["attn.residual", "mlp_norm"]
    assert not any("worker" in reason for reason in refused.values())


def test_an_unfused_norm_wins_for_many_rows_and_explain_says_so_in_numbers() -> None:
    few = {(f.a, f.b): f for f in planned(EIGHT_B, "decode", 1).fusions}
    many = {(f.a, f.b): f for f in planned(EIGHT_B, "decode", 64).fusions}
    assert few["mlp_norm", "mlp.gate"].taken
    lost = many["mlp_norm", "mlp.gate"]
    assert not lost.taken
    assert "µs in one kernel against" in lost.reason and "preparing rows" in lost.reason


def test_a_prompt_inserts_before_it_attends() -> None:
    plan = planned(EIGHT_B, "mixed", 512)
    names = [x.kernel.ops for x in in_layer(plan)]
    insert = next(i for i, ops in enumerate(names) if "attn.cache" in ops)
    attend = next(i for i, ops in enumerate(names) if "attn" in ops)
    assert insert < attend
    told = {(f.a, f.b): f.reason for f in plan.fusions if not f.taken}
    assert "other rows attend" in told["attn.cache", "attn"]


def test_the_head_chooses_in_a_second_small_kernel() -> None:
    plan = planned(EIGHT_B, "decode", 1)
    head = plan.launches[-1]
    assert head.kernel.match.family.name == "head_sample"
    (second,) = head.price.passes
    assert second.us < 5 and "top-k or top-p" in second.why
    entries = plan.to_json()["kernels"]
    assert [e["name"] for e in entries[-2:]] == [head.kernel.name, f"{head.kernel.name}.choose"]
    assert sum(e["predicted_us"] for e in entries) == pytest.approx(plan.predicted_us, abs=0.2)
    assert sum(e["bytes"] for e in entries) == sum(x.price.bytes for x in plan.launches)
    assert plan.launch_count == len(entries)


def test_splits_have_scratch_and_counters_at_every_size() -> None:
    """A signature must not depend on the size: one source serves all of them."""
    for size in (1, 256):
        attend = next(
            x for x in in_layer(planned(EIGHT_B, "decode", size)) if "attn" in x.kernel.ops
        )
        assert attend.kernel.signature[-2:] == (SCRATCH, COUNTERS)
        assert attend.price.scratch_bytes > 0 and attend.price.counters > 0
    assert planned(EIGHT_B, "decode", 1).counters > 0


def test_side_by_side_rows_are_a_gpu_matter() -> None:
    """Queries and keys may rotate in one launch on a GPU; on the CPU they share no row."""
    graph = decoder(SMALL)
    plan = planned(SMALL, "decode", 64)
    block = plan.graph.blocks[1]
    from kernelgen.planner.network import Network, Region

    network = Network(block)
    mask = 1 << network.producer["attn.q_rope"] | 1 << network.producer["attn.k_rope"]
    for target, taken in (("sm_90", True), ("cpu", False)):
        rows = next(f for f in catalogue(parse_target(target)) if f.name == "rows")
        answer = rows.match(Region(network, mask), "mixed")
        assert isinstance(answer, Match) is taken
    assert graph.blocks[1] == block


def test_unfused_plans_cover_everything() -> None:
    plan = planned(TWO_B, "decode", 4, fusion=False)
    assert all(len(x.kernel.ops) == 1 for x in plan.launches)
    assert not any(f.taken for f in plan.fusions)


def test_every_limit_that_a_block_breaks_is_told() -> None:
    block = Footprint(warps=64, registers=300, shared_bytes=300 << 10)
    problems = block.problems(H200)
    assert len(problems) == 4
    for number, text in zip(("2048", "300", "614400", "300 KiB"), problems, strict=True):
        assert number in text


@pytest.mark.parametrize("device", GPUS, ids=lambda d: d.target)
def test_what_is_chosen_is_legal(device: Device) -> None:
    for rows, n, k in (
        (1, 576, 576),
        (1, 151669, 1024),
        (7, 192, 576),
        (33, 1536, 100),
        (513, 49152, 576),
    ):
        choose = gemv if rows == 1 else skinny if rows <= 64 else gemm
        problem = product(rows, n, k)
        found = choose(problem, device)
        assert not isinstance(found, Refusal), found
        assert found.tile.problems(problem, device) == ()
        footprint = found.tile.footprint(problem)
        assert footprint.problems(device) == () and footprint.resident(device) >= 1
        assert footprint.shared_bytes <= device.shared_per_block_bytes
        assert 1 <= found.legal <= found.looked_at


def test_a_small_shared_memory_excludes_tiles() -> None:
    problem = product(4096, 4096, 4096)
    tile = GemmTile(rows=128, outputs=256, depth=64, stages=4, warps=8)
    assert tile.problems(problem, H200) == ()
    reasons = tile.problems(problem, parse_target("sm_89"))
    assert any("192 KiB of shared memory, a block has at most 99" in r for r in reasons)


def test_without_any_legal_tile_the_reasons_are_told() -> None:
    crippled = replace(H200, shared_per_block_bytes=1 << 10, max_registers_per_thread=8)
    found = gemm(product(512, 512, 512), crippled)
    assert isinstance(found, Refusal)
    assert "no tile is legal" in found.reason
    assert "registers a thread, there are 8" in found.reason and "e.g. rows" in found.reason


def test_sizes_that_do_not_divide_are_masked_and_told() -> None:
    problem = product(1, 49152 + 3, 576)
    notes = GemvTile(outputs=4, depth=256, warps=1, blocks=0).masks(problem)
    assert notes == (
        "masked depth: 576 = 2 × 256 + 64 of 256",
        "masked outputs: 49155 = 12288 × 4 + 3 of 4",
    )
    assert GemvTile(outputs=4, depth=256, warps=1, blocks=0).masks(product(1, 1024, 512)) == ()


def test_splits_of_attention_fill_the_machine_and_find_work() -> None:
    problem = DecodeProblem(1, 32, 8, 128, 16, 1024, False, 0, 0, True, 1 << 22, 1 << 20)
    for splits, legal in ((1, False), (8, False), (16, True), (64, True)):
        tile = DecodeTile(tokens=64, splits=splits, least=64, stages=2, warps=4, cluster=1)
        assert (tile.problems(problem, H200) == ()) is legal
    assert DecodeTile(64, 64, 64, 2, 4, 1).parts(problem) == 16  # 1,024 entries in steps of 64
    window = replace(problem, visible=128, window=True)
    assert DecodeTile(64, 2, 64, 2, 4, 1).problems(window, H200) == ()
    assert DecodeTile(64, 4, 64, 2, 4, 1).problems(window, H200)  # 128 entries are two steps of 64


def test_more_rows_than_a_family_takes() -> None:
    for choose, rows, text in (
        (gemv, 100, "100 rows"),
        (skinny, 65, "at most 64"),
        (gemm, 16, "padding"),
    ):
        found = choose(product(rows, 512, 512), H200)
        assert isinstance(found, Refusal) and text in found.reason


def test_limits_and_choice_say_what_bounds_a_kernel() -> None:
    down = next(x for x in in_layer(planned(EIGHT_B, "decode", 1)) if "mlp.down" in x.kernel.ops)
    assert down.price.limits[0].startswith("memory") and down.price.limits[0].endswith("µs")
    assert "boundary 1.2 µs (dependent launch)" in down.price.limits
    assert {"outputs", "depth", "warps"} <= set(down.price.choice)
    a100 = planned(EIGHT_B, "decode", 1, parse_target("sm_80"))
    assert "no dependent launch before sm_90" in " ".join(in_layer(a100)[0].price.limits)
