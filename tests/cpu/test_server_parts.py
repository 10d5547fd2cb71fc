"""Parts of the server by themselves: admission, faults of bodies, meters, pieces of a choice."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelgen_runtime.errors import RequestError
from kernelgen_runtime.guide.guide import FAULT
from kernelgen_runtime.sample.params import SamplingParams
from kernelgen_runtime.text.detokenize import GrowingText

pytest.importorskip("starlette")

from kernelgen_runtime.server.admission import Admission, OverloadedError
from kernelgen_runtime.server.choice import Choice
from kernelgen_runtime.server.faults import FieldError, check
from kernelgen_runtime.server.fields import BODIES, MAX_PROMPT_IDS
from kernelgen_runtime.server.job import EngineLostError
from kernelgen_runtime.server.logs import set_up_logging
from kernelgen_runtime.server.meters import Histogram, Meters
from kernelgen_runtime.server.metrics import Numbers
from kernelgen_runtime.server.problems import MAX_MESSAGE, Problem, problem_of
from kernelgen_runtime.server.wire import End, First, Load, Update

CHAT = BODIES["/v1/chat/completions"]
COMPLETION = BODIES["/v1/completions"]


@pytest.mark.row("R-163")
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=40))
def test_places_taken_are_given_back_once(visits: list[tuple[int, int]]) -> None:
    admission = Admission(max_requests=8)
    inside = []
    for choices, leaving in visits:
        before = admission.requests
        try:
            inside.append(admission.enter(choices))
            assert before + choices <= 8
        except OverloadedError:
            assert before + choices > 8 and admission.requests == before
        for ticket in inside[:leaving]:
            ticket.leave(), ticket.close(), ticket.close()
        inside = inside[leaving:]
        assert admission.requests == sum(ticket.choices for ticket in inside)
    for ticket in inside:
        ticket.close()
    assert admission.requests == admission.tokens == 0


@pytest.mark.row("R-164")
def test_tokens_count_until_the_first_token() -> None:
    admission = Admission(max_tokens=100)
    first = admission.enter(1)
    first.charge(250)  # one large prompt may overshoot
    with pytest.raises(OverloadedError, match="250 prompt tokens wait") as refused:
        admission.enter(1)
    assert problem_of(refused.value).headers == {"retry-after": "1"}
    first.computed(200)
    second = admission.enter(1)
    second.charge(60)
    assert admission.tokens == 110 and admission.rejected == {"num_queued_tokens": 1}
    first.close(), second.close()
    assert admission.tokens == 0


@pytest.mark.row("R-174")
def test_faults_are_counted_and_ten_are_told() -> None:
    body = {"messages": [{"role": "nobody " * 1000, "content": [7] * 50}] * 400}
    begin = time.perf_counter()
    with pytest.raises(FieldError) as refused:
        check(body, CHAT)  # type: ignore[arg-type]
    assert time.perf_counter() - begin < 1
    error = refused.value
    assert "20400 in all" in str(error) and error.param == "messages[0].role"
    assert str(error).count("must be") == 10 and len(json.dumps(problem_of(error).body)) <= 8192


def test_a_list_that_is_too_long_is_one_fault() -> None:
    begin = time.perf_counter()
    with pytest.raises(FieldError, match=r"a list of 4097$"):
        check({"messages": [None] * 4097}, CHAT)
    with pytest.raises(FieldError, match="prompt: must be a list of 1"):
        check({"prompt": [1] * (MAX_PROMPT_IDS + 1)}, COMPLETION)  # type: ignore[dict-item]
    check({"prompt": [1] * MAX_PROMPT_IDS}, COMPLETION)  # type: ignore[dict-item]
    assert time.perf_counter() - begin < 1.5


@pytest.mark.row("R-176")
def test_every_number_of_a_body_has_a_most() -> None:
    def walk(schema: Any, where: str) -> None:
        for part in schema.get("anyOf", []):
            walk(part, where)
        for name, part in schema.get("properties", {}).items():
            walk(part, f"{where}.{name}")
        kind = schema.get("type")
        if kind == "array":
            assert "maxItems" in schema, where
            walk(schema["items"], f"{where}[]")
        if kind == "string":
            assert "maxLength" in schema or "enum" in schema, where
        if kind == "integer":
            assert {"minimum", "maximum"} <= schema.keys(), where

    for route, schema in BODIES.items():
        walk(schema, route)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
names = st.sampled_from([*CHAT["properties"], "other"])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, json_values, max_size=6))
def test_any_body_is_checked_or_refused_in_short(body: dict[str, Any]) -> None:
    for schema in BODIES.values():
        try:
            check(body, schema)
        except RequestError as error:
            assert len(str(error)) < 10 * 600


def test_problems_are_bounded_and_hide_what_is_ours() -> None:
    body = Problem(400, "x" * 10**6).body
    assert len(body["error"]["message"]) == MAX_MESSAGE
    told = problem_of(ValueError("/secret/path")).message
    assert "secret" not in told and "ValueError" in told


@pytest.mark.row("R-113")
def test_what_the_engine_counts_by_name_has_labels() -> None:
    numbers = Numbers("kernelgen", "m", Meters(), Admission())
    marked = {"watermarked": 5, "not_watermarked": 3, "skipped": 2}
    numbers.load = Load(marked=marked, group_hits={"full": 64, "window": 48})
    lines = numbers.text().decode().splitlines()
    for name, label, counts in (
        ("watermark_requests", "status", marked),
        ("prefix_cache_group_hits", "group", numbers.load.group_hits),
    ):
        told = [line for line in lines if line.startswith(f"kernelgen:{name}_total{{")]
        assert len(told) == len(counts)
        for value, count in counts.items():
            assert [x for x in told if f'{label}="{value}"' in x and x.endswith(f" {count}.0")]


def test_histograms_count_as_prometheus_does() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0.5, 1.0, 1.5, 4.0, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 1] and histogram.total == 16.0
    assert histogram.quantile(0.5) == 2.0 and Histogram((1.0,)).quantile(0.5) is None


class Letters:
    """A tokenizer of single characters: ids are their codes."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))


def choice_of(params: SamplingParams, aborted: list[int]) -> Choice:
    text = GrowingText(Letters(), [], params.stop)
    return Choice(
        *(7, 0, 0, params, text, None),
        changed=lambda choice: None,
        abort=aborted.append,
        gap=lambda seconds: None,
    )


def test_a_stop_string_aborts_and_late_tokens_are_dropped() -> None:
    aborted: list[int] = []
    choice = choice_of(SamplingParams(stop=("e t",)), aborted)
    text = ""
    for at, letter in enumerate("one two six"):
        first = First(0, 0.0, 0.0) if at == 0 else None
        choice.updated(Update(7, [ord(letter)], first), float(at))
        text += choice.take().text
    assert text == choice.text == "on" and aborted == [7]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "e t")
    assert len(choice.ids) == 5
    assert choice.engine_params.stop == ()


def test_the_end_tells_what_was_held_back() -> None:
    choice = choice_of(SamplingParams(stop=("xyz",)), [])
    choice.updated(Update(7, [ord(c) for c in "abxy"]), 0.0)
    assert choice.take().text == "ab"
    choice.updated(Update(7, [], None, End("length")), 1.0)
    assert choice.take().text == "xy" and choice.finish_reason == "length"
    choice.end("abort")
    assert choice.finish_reason == "length"


def test_whose_fault_an_end_is() -> None:
    """What an own grammar runs into is the client's to change; a step that fails is not."""
    assert problem_of(EngineLostError(FAULT + "lexer error: too much")).status == 400
    assert problem_of(EngineLostError("the engine process has ended")).status == 500


def test_no_log_line_has_what_stands_behind_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    """People put keys there, though no route reads them."""
    logger = logging.getLogger("uvicorn.access")
    before = logger.filters[:]
    try:
        set_up_logging("info")
        line = ("1.2.3.4:5", "GET", "/v1/models?api_key=SECRET", "1.1", 401)
        logger.info('%s - "%s %s HTTP/%s" %d', *line)
    finally:
        logger.filters[:] = before
    told = capsys.readouterr().err
    assert "/v1/models HTTP/1.1" in told and "SECRET" not in told
