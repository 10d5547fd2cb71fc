"""Scalar expressions: building, cost, text, and the JSON form."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelgen.ir.expr import FUNCTIONS, Expr, arg, call, const

LEAVES = st.one_of(
    st.integers(0, 3).map(arg),
    st.floats(allow_nan=False, allow_infinity=False, width=64).map(const),
)


def _calls(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.sampled_from(sorted(FUNCTIONS)).flatmap(
        lambda fn: st.tuples(*[children] * FUNCTIONS[fn].arity).map(lambda a: call(fn, *a))
    )


EXPRESSIONS = st.recursive(LEAVES, _calls, max_leaves=12)


@given(EXPRESSIONS)
def test_json_form_is_exact(expr: Expr) -> None:
    assert Expr.from_json(json.loads(json.dumps(expr.to_json()))) == expr


@given(EXPRESSIONS)
def test_equal_text_means_equal_expression(expr: Expr) -> None:
    assert str(Expr.from_json(expr.to_json())) == str(expr)


def test_operators_and_numbers() -> None:
    x = arg(0)
    expr = (x + 1.0) * x / 2.0 - x
    assert str(expr) == "sub(div(mul(add(a0, 1.0), a0), 2.0), a0)"
    value = expr.evaluate([torch.tensor([3.0])])
    assert float(value) == (3 + 1) * 3 / 2 - 3


def test_cost_adds_up() -> None:
    assert (arg(0) * arg(1)).flops == FUNCTIONS["mul"].flops
    both = call("silu", arg(0)) * arg(1)
    assert both.flops == FUNCTIONS["silu"].flops + FUNCTIONS["mul"].flops


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_constants_must_survive_printing(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        const(value)


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="takes 2 arguments"):
        call("add", arg(0))
    with pytest.raises(KeyError):
        call("system", arg(0))
