"""Proves plans for people: nothing is lost, nothing is executed, repeated layers are folded."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import plan_sample
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelgen.core.errors import UsageError
from kernelgen.report import read_plan
from kernelgen.report.build_text import diff_text
from kernelgen.report.figures import bytes_text, count_text, percent_text, us_text
from kernelgen.report.grouping import sections
from kernelgen.report.op_chain import Edge, op_chain
from kernelgen.report.plan_html import plan_html
from kernelgen.report.plan_text import explain_text, plan_text

VOID = {"meta", "br", "circle"}
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=y>&\"'"


class Page(HTMLParser):
    """Counts tags and checks that they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_equal_layers_are_folded_and_none_is_lost() -> None:
    plan = read_plan(plan_sample.plan(layers=6))
    folded = sections(plan.kernels)
    assert [s.title for s in folded] == [
        "once a step",
        "layers 0, 2, 4 (3 ×)",
        "layers 1, 3, 5 (3 ×)",
        "once a step",
    ]
    assert sum(len(s.kernels) * s.times for s in folded) == len(plan.kernels)
    assert sum(s.us for s in folded) == pytest.approx(plan.predicted_us)


def test_a_layer_with_other_cost_is_not_folded() -> None:
    data = plan_sample.plan(layers=4)
    data["kernels"][3]["bytes"] += 1
    assert "layer 1" in [s.title for s in sections(read_plan(data).kernels)]


def test_text_shows_every_kernel_figure_and_reason() -> None:
    text = explain_text(read_plan(plan_sample.plan()))
    assert text.startswith("toy on sm_90:h200, decode of 8 requests, 512 tokens of context\n")
    assert "10 launches, 1 MB moved, predicted 70 µs; memory limit 20 µs (29% reached)" in text
    assert "1 fusions taken, 1 refused; 12 candidate kernels looked at" in text
    # 100 kB at 4590 GB/s are 0.0218 µs of 10 µs
    assert re.search(r"qkv +linear/cpp +100 kB +200 k +10 µs +0.2% +modelled +norm → q → k", text)
    assert "  + norm → q epilogue: saved 2.30 kB and 1 launch" in text
    assert "  - q → attn epilogue: needs whole rows" in text
    assert text.startswith(plan_text(read_plan(plan_sample.plan())))


def test_page_is_self_contained_and_well_formed() -> None:
    plan = read_plan(plan_sample.plan())
    html = plan_html(plan)
    page = Page(html)
    assert page.open == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "src" not in page.attributes and "href" not in page.attributes
    assert "http" not in html and "url(" not in html and "@import" not in html
    assert 'name="viewport"' in html
    shown = "".join(page.texts)
    for text in ("attend_window", "layers 1, 3 (2 ×)", "q → attn not fused: needs whole rows"):
        assert text in shown
    assert plan_html(plan) == html


def test_page_escapes_every_text() -> None:
    clean = Page(plan_html(read_plan(plan_sample.plan())))
    page = Page(plan_html(read_plan(plan_sample.plan(hostile=HOSTILE))))
    assert page.open == []
    assert page.tags == clean.tags
    assert page.attributes.keys() == clean.attributes.keys()
    assert HOSTILE in "".join(page.texts)


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=40))
def test_page_survives_any_text(text: str) -> None:
    assert Page(plan_html(read_plan(plan_sample.plan(layers=1, hostile=text)))).open == []


def test_plan_data_skips_unknown_fields_and_lists_problems() -> None:
    data: dict[str, Any] = plan_sample.plan() | {"future": 1}
    data["kernels"][0]["future"] = 2
    assert read_plan(data).size == 8
    data["kernels"][1]["bytes"] = "many"
    del data["phase"]
    data["schema"] = 2
    with pytest.raises(UsageError) as caught:
        read_plan(data, source="x.json")
    for part in ("x.json", "kernels[1].bytes", "phase", "schema"):
        assert part in str(caught.value)
    with pytest.raises(UsageError):
        read_plan([])


def test_a_foreign_target_has_no_memory_share() -> None:
    data = plan_sample.plan() | {"target": "sm_999"}
    plan = read_plan(data)
    assert plan.memory_share(plan.kernels[0]) is None
    assert "–" in plan_text(plan)
    assert Page(plan_html(plan)).open == []


def test_arrows_join_ops_of_this_kernel_only() -> None:
    drawn = op_chain(
        ["a", "b", "c"], [Edge("a", "c", "r"), Edge("b", "x", "r"), Edge("a", "b", "h")]
    )
    assert drawn.count("<title>") == 2
    side = op_chain(["a", "b"], [Edge("a", "b", "horizontal", flows=False)])
    assert "dasharray" in side and "tip" not in side.replace("circle class=tip", "")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(999), "999 B"),
        (bytes_text(98_362_432), "98.4 MB"),
        (bytes_text(999_600), "1.00 MB"),
        (count_text(135), "135"),
        (count_text(134_515_008), "135 M"),
        (us_text(1.11), "1.11 µs"),
        (us_text(3460), "3.46 ms"),
        (percent_text(0.87), "87%"),
        (percent_text(0.00002), "<0.1%"),
        (percent_text(0), "0%"),
    ],
)
def test_figures_have_three_digits(made: str, text: str) -> None:
    assert made == text


def test_equal_builds_have_no_difference() -> None:
    from kernelgen.pack.diff import BuildDiff, FieldChange, FileChange

    assert diff_text(BuildDiff((), (), (), ())) == "the builds are equal"
    change = FileChange("kernels/a.cpp", 10, 2000, ("-old", "+new"))
    text = diff_text(BuildDiff((FieldChange("a.b", "", "1"),), ("x",), ("y",), (change,)))
    for line in ("  a.b: absent → 1", "+ x", "- y", "~ kernels/a.cpp  10 B → 2 kB", "    +new"):
        assert line in text.splitlines()
