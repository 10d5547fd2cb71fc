"""Owns the names of fusion rules: what kind of edge becomes part of a kernel, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.ir.op import Op, Trait


@dataclass(frozen=True)
class Rule:
    """A named kind of fusion, told by the traits of the two ops that meet."""

    name: str
    first: Trait
    second: Trait
    text: str


_APART = Trait.SCAN | Trait.LATENT | Trait.HEAD_PRODUCT
_ANCHOR = Trait.MATMUL | Trait.ATTENTION | Trait.SAMPLE | Trait.ROUTE | Trait.EXPERTS | _APART

RULES = (
    Rule("horizontal", Trait.MATMUL, Trait.MATMUL, "projections of one input read it once"),
    Rule(
        "gate_and_up",
        Trait.EXPERTS,
        Trait.EXPERTS,
        "both products of an expert read the row once",
    ),
    Rule("route", Trait.ROUTE, Trait.ROUTE, "a row's choice and its weights are made together"),
    Rule(
        "router_then_choose",
        Trait.MATMUL,
        Trait.ROUTE,
        "the choice starts on logits still in cache",
    ),
    Rule(
        "sum_experts",
        Trait.EXPERTS,
        Trait.EXPERT_SUM,
        "a token's experts are added up where they are computed",
    ),
    Rule(
        "insert_then_attend",
        Trait.STATE_WRITE,
        Trait.ATTENTION,
        "a request attends to the row it has just stored",
    ),
    Rule(
        "head_then_sample", Trait.MATMUL, Trait.SAMPLE, "the choice starts on logits still in cache"
    ),
    Rule(
        "row_prologue",
        Trait.ROW_LOCAL | Trait.SELECT | Trait.GATHER,
        _ANCHOR,
        "rows are prepared where the anchor reads them",
    ),
    Rule(
        "store_prologue",
        Trait.ROW_LOCAL,
        Trait.STATE_WRITE,
        "rows are prepared where they are stored",
    ),
    Rule(
        "anchor_chain",
        Trait.MATMUL | Trait.ATTENTION,
        Trait.MATMUL | Trait.ATTENTION,
        "results stay on the chip until the next product reads them",
    ),
    Rule(
        "store_epilogue",
        Trait.MATMUL,
        Trait.STATE_WRITE,
        "the anchor's result is stored in the cache as it is finished",
    ),
    Rule(
        "epilogue",
        _ANCHOR | Trait.EXPERT_SUM,
        Trait.ROW_LOCAL,
        "the anchor's result is finished in registers",
    ),
    Rule(
        "row_chain",
        Trait.ROW_LOCAL | Trait.GATHER | Trait.SELECT,
        Trait.ROW_LOCAL,
        "a row stays in cache between row-wise ops",
    ),
    Rule("join", Trait(0), Trait(0), "two ops in one kernel"),
)
"""First match wins; the last one matches everything."""


def rule_for(first: Op, second: Op) -> Rule:
    """The rule under which two ops are, or would be, one kernel."""
    for rule in RULES:
        if (not rule.first or first.has(rule.first)) and (
            not rule.second or second.has(rule.second)
        ):
            return rule
    raise AssertionError("the last rule matches everything")
