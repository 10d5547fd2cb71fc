"""Routed experts: what the ops mean, maps and routers as data, kernels against float64."""

from __future__ import annotations

import random

import pytest
import torch
from moe_blocks import (
    NAN,
    NO_STEP,
    SHAPES,
    Shape,
    block_of,
    built,
    operands,
    run,
    wrong,
)

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, INT32, DType
from kernelgen.ir.graph import Role
from kernelgen.ir.types import Dim, Sizes, Type
from kernelgen.lower.scope import STREAM
from kernelgen.ops import ChooseExperts, ExpertLinear, SumExperts, WeighExperts
from kernelgen.ops.expert_linear import distinct_experts
from kernelgen.spec.experts import REMOTE, ExpertMap, RouterSpec, Scoring
from kernelgen.verify.bounds import evaluate_bounded
from kernelgen.verify.compare import different


def choose(top: int, scoring: str = "softmax", **groups: int) -> ChooseExperts:
    return ChooseExperts(top, scoring, **groups)


# --- what the ops mean -------------------------------------------------------------------------


def test_ties_go_to_the_lower_expert() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0], [0.0, -0.0, 0.0, 0.0]], dtype=torch.float64)
    assert run(choose(3), logits).tolist() == [[1, 2, 0], [0, 1, 2]]


def test_a_row_with_nan_takes_the_first_experts_with_nan_weights() -> None:
    logits = torch.tensor([[1.0, NAN, 5.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    ids = run(choose(2), logits)
    assert ids.tolist() == [[0, 1], [2, 1]]
    weights = run(WeighExperts("softmax"), logits, ids)
    assert weights[0].isnan().all() and not weights[1].isnan().any()


def test_a_bias_chooses_but_does_not_weigh() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64)
    ids = run(choose(1, "sigmoid"), logits, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    assert ids.tolist() == [[2]]
    weights = run(WeighExperts("sigmoid", renormalise=False, scale=2.0), logits, ids)
    assert weights.tolist() == [[1.0]]


def test_groups_keep_the_best_by_their_best_two() -> None:
    logits = torch.tensor([[9.0, -9.0, 3.0, 3.0, 2.0, 2.5, -9.0, -9.0]], dtype=torch.float64)
    ids = run(choose(3, "sigmoid", groups=4, kept_groups=2, group_top=2), logits)
    assert ids.tolist() == [[2, 3, 5]]  # 9 alone makes a group worth less than 3 and 3


@pytest.mark.parametrize("scoring", [s.value for s in Scoring])
def test_weights_are_scores_over_their_sum(scoring: str) -> None:
    logits = torch.randn(5, 7, dtype=torch.float64)
    ids = run(choose(3, scoring), logits)
    score = {
        "softmax": logits.softmax(-1),
        "sigmoid": logits.sigmoid(),
        "sqrtsoftplus": logits.exp().log1p().sqrt(),
    }[scoring].gather(1, ids)
    plain = run(WeighExperts(scoring, renormalise=False, scale=1.5), logits, ids)
    assert torch.allclose(plain, score * 1.5)
    whole = run(WeighExperts(scoring, scale=2.5), logits, ids)
    assert torch.allclose(whole, score / score.sum(-1, keepdim=True) * 2.5)


def test_expected_bytes_are_those_of_distinct_experts() -> None:
    x, stack = Type((Dim.T, 64), BFLOAT16), Type((48, 32, 64), BFLOAT16)
    op, ids = ExpertLinear(FLOAT32), Type((Dim.T, 4), INT32)
    one = 32 * 64 * 2
    for tokens, distinct in ((1, 4.0), (2, 7.67), (32, 45.0), (64, 47.8)):  # the dossier's figures
        found = op.read_bytes(1, [x, stack, ids], Sizes(tokens, tokens, 1)) / one
        assert found == pytest.approx(distinct, rel=0.005)
    assert distinct_experts(1, 512, 10) == pytest.approx(10)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (choose(9), [Type((Dim.T, 8), FLOAT32)]),
        (choose(0), [Type((Dim.T, 8), FLOAT32)]),
        (choose(4, "softmax", groups=4, kept_groups=1), [Type((Dim.T, 8), FLOAT32)]),
        (choose(2, "softmax", groups=3, kept_groups=1), [Type((Dim.T, 8), FLOAT32)]),
        (choose(2, "softplus"), [Type((Dim.T, 8), FLOAT32)]),
        (choose(2), [Type((Dim.T, 8), FLOAT32), Type((7,), FLOAT32)]),
        (
            ExpertLinear(FLOAT32),
            [Type((Dim.T, 5), FLOAT32), Type((8, 3, 6), FLOAT32), Type((Dim.T, 2), INT32)],
        ),
        (SumExperts(), [Type((Dim.T, 3, 5), FLOAT32), Type((Dim.T, 2), FLOAT32)]),
    ],
)
def test_what_does_not_fit_is_refused(op, inputs: list[Type]) -> None:
    with pytest.raises(ValueError):
        op.infer(inputs)


def test_a_router_that_cannot_choose_is_refused() -> None:
    for bad in ({"top_k": 9}, {"top_k": 0}, {"top_k": 3, "groups": 4, "kept_groups": 1}):
        with pytest.raises(ValueError):
            RouterSpec(8, **bad)


# --- where experts live ------------------------------------------------------------------------


@pytest.mark.row("R-013")
@pytest.mark.parametrize("seed", range(20))
def test_any_placement_serves_each_expert_once(seed: int) -> None:
    """Random ranks, some experts on several: exactly one of them serves, by its own number."""
    rng = random.Random(seed)
    experts, ranks = rng.randint(1, 40), rng.randint(1, 6)
    held: list[list[int]] = [[] for _ in range(ranks)]
    for g in range(experts):
        for rank in rng.sample(range(ranks), rng.randint(1, ranks)):
            held[rank].append(g)
    for numbers in held:
        rng.shuffle(numbers)
    placed = ExpertMap.of_ranks(held)
    served = [0] * experts
    for rank in placed.ranks:
        assert placed.held(rank) == tuple(held[rank])
        for g, local in enumerate(placed.local(rank)):
            served[g] += local != REMOTE
            assert local == REMOTE or held[rank][local] == g
    assert served == [1] * experts


@pytest.mark.row("R-013")
def test_placements_that_lose_or_confuse_experts_are_refused() -> None:
    for places in (((),), (((0, 1),),), (((0, 0),), ((0, 0),)), (((0, 0), (0, 1)),)):
        with pytest.raises(ValueError):
            ExpertMap(places)
    assert ExpertMap.even(10, 4).held(1) == (3, 4)


# --- kernels -----------------------------------------------------------------------------------


CASES = [(name, FLOAT32) for name in SHAPES] + [("softmax", BFLOAT16)]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_kernels_are_right_and_every_plan_gives_the_same_bits(name: str, dtype: DType) -> None:
    """Pair by pair or sorted, few rows or many, fused or not, on one thread or three."""
    shape, fused = SHAPES[name], built(SHAPES[name], dtype)
    for tokens in (1, 2, 7, 33):
        given = operands(fused, shape, tokens, seed=tokens)
        first = fused.run(fused.plans[0], given)
        assert wrong(fused, given, first, shape) == 0
        for plan in fused.plans:
            for threads in (1, 3):
                assert different(first, fused.run(plan, given, threads)) == 0
    if name == "softmax":
        plain = built(SHAPES[name], dtype, fusion=False)
        assert different(first, plain.run(plain.plans[-1], given)) == 0


@pytest.mark.parametrize("tokens", [1, 2, 3, 16, 17, 48, 49, 255, 513])
def test_any_number_of_tokens(tokens: int) -> None:
    shape, made = SHAPES["softmax"], built(SHAPES["softmax"], FLOAT32)
    given = operands(made, shape, tokens, seed=5)
    for plan in made.plans:
        found = made.run(plan, given)
        assert wrong(made, given, found, shape) == 0
    alone = made.run(made.plans[0], given | {"x": given["x"][-1:]})
    assert different(found[-1], alone[0]) == 0


def test_both_ways_are_planned() -> None:
    """One token goes pair by pair with its sum, a prompt by expert."""
    made = built(SHAPES["softmax"], FLOAT32)
    kinds = [{k.match.family.name for k in plan.kernels} for plan in made.plans]
    assert "experts_pairs" in kinds[0] and "experts_sorted" not in kinds[0]
    assert "experts_sorted" in kinds[-1]
    assert any("mlp.experts.sum" in k.ops and len(k.ops) > 1 for k in made.plans[0].kernels)


def test_all_tokens_to_one_expert_and_equal_logits() -> None:
    """A router of zeros: every token ties everywhere and takes the first experts."""
    shape, made = SHAPES["softmax"], built(SHAPES["softmax"], FLOAT32)
    given = operands(made, shape, 100)
    given["mlp.router.weight"].zero_()
    exact = {n: t.double() for n, t in given.items()}
    want = evaluate_bounded(made.block, exact, NO_STEP)
    assert want["mlp.router.choose"].value.unique().tolist() == [0, 1, 2]
    result = want[dict(made.block.results)[STREAM]]
    for plan in made.plans:
        off = (made.run(plan, given).double() - result.value).abs()
        assert bool((off <= result.error).all())


def test_a_token_that_is_no_number_spoils_itself_alone() -> None:
    shape, made = SHAPES["softmax"], built(SHAPES["softmax"], FLOAT32)
    given = operands(made, shape, 9)
    clean = [made.run(plan, given) for plan in made.plans]
    given["x"][4, 3] = NAN
    for plan, before in zip(made.plans, clean, strict=True):
        after = made.run(plan, given)
        assert after[4].isnan().all()
        assert different(after[:4], before[:4]) == different(after[5:], before[5:]) == 0


def test_no_tokens() -> None:
    made = built(SHAPES["softmax"], FLOAT32)
    given = operands(made, SHAPES["softmax"], 1)
    for plan in made.plans:
        assert len(made.run(plan, given | {"x": given["x"][:0]})) == 0


def test_the_ranks_add_up_to_the_whole() -> None:
    """Each rank computes its own experts; together they are what one machine computes."""
    shape = SHAPES["a rank of three"]
    made, placed = built(SHAPES["a rank of three"], FLOAT32), shape.experts
    assert placed is not None
    whole = block_of(Shape(), FLOAT32)
    given = operands(made, shape, 12)
    made_here = torch.Generator().manual_seed(1)
    stacks = {
        v.name: torch.randn([int(d) for d in v.type.shape], generator=made_here) / 8  # type: ignore[arg-type]
        for v in whole.values
        if v.role is Role.WEIGHT and "experts" in v.name
    }
    total = torch.zeros(12, shape.hidden, dtype=torch.float64)
    nothing = None
    for rank in placed.ranks:
        own, held = dict(given), list(placed.held(rank))
        own["mlp.map"] = torch.tensor(placed.local(rank), dtype=torch.int32)
        for name, stack in stacks.items():
            size = given[name].shape[0]  # ranks may hold one expert less: it is never asked for
            padded = torch.zeros(size, *stack.shape[1:])
            padded[: len(held)] = stack[held]
            own[name] = padded
        if nothing is None:
            idle = own | {"mlp.map": torch.full((11,), REMOTE, dtype=torch.int32)}
            nothing = made.run(made.plans[0], idle).double()
        total += made.run(made.plans[0], own).double() - nothing
    exact = {n: t.double() for n, t in (given | stacks).items() if n != "mlp.map"}
    want = evaluate_bounded(whole, exact, NO_STEP)[dict(whole.results)[STREAM]]
    assert bool((total + nothing - want.value).abs().max() <= 1e-4)
