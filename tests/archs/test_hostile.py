"""Damaged configs of every architecture: refused in words, never with a stray exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Subject, folders, subject_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelgen.core.dtypes import BFLOAT16
from kernelgen.core.errors import KernelgenError
from kernelgen.core.jsonio import to_json
from kernelgen.ir.printer import graph_text
from kernelgen.ir.verify import verify_graph
from kernelgen.spec.config import ConfigFile

BREAKOUTS = [
    "'); system('x'); //",
    '"""\n}}\nint main() {',
    "{{ 7 * 7 }}",
    "{% include '/etc/passwd' %}",
    "\x00\u202e",
    "x" * 5000,
    "../../../etc/passwd",
]
NUMBERS = [0, -1, 1, 3, 2**31, 2**40, 2**63, -(2**63), 10**30, 0.0, -0.5, 1e-320, 1e308, 0.1]
VALUES: list[Any] = [None, True, False, *NUMBERS, *BREAKOUTS, [], [1, 2], {}, {"rope_type": "x"}]


def check(subject: Subject, config: dict[str, Any]) -> None:
    """The config is read into a valid graph, or refused with a bounded message."""
    try:
        spec = subject.architecture.read(ConfigFile("config.json", config))
    except KernelgenError as error:
        message = str(error)
        assert message.startswith("config.json: ") and error.exit_code in (2, 3)
        assert len(message) < 8000 and "\x00" not in message and "\u202e" not in message
        return
    texts = [t for t in strings(to_json(spec)) if any(b[:20] in t for b in BREAKOUTS)]
    assert not texts
    if spec.vocab * spec.hidden <= 1 << 40 and len(spec.layers) <= 512:
        graph = subject.architecture.lower(spec, BFLOAT16)
        verify_graph(graph)
        assert not [b for b in BREAKOUTS if b[:20] in graph_text(graph)]


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [s for v in value.values() for s in strings(v)]
    return [s for v in value for s in strings(v)] if isinstance(value, list) else []


def test_every_field_with_every_bad_value(subject: Subject) -> None:
    for name in subject.config:
        for value in VALUES:
            check(subject, {**subject.config, name: value})
    for name in subject.fields:
        for value in VALUES:
            check(subject, subject.changed({**subject.fields, name: value}))


def test_every_field_missing(subject: Subject) -> None:
    for name in subject.config:
        check(subject, {k: v for k, v in subject.config.items() if k != name})
    for name in subject.fields:
        check(subject, subject.changed({k: v for k, v in subject.fields.items() if k != name}))


def test_entries_of_lists_and_objects(subject: Subject) -> None:
    for name, held in subject.fields.items():
        if isinstance(held, list):
            for value in VALUES:
                changed = {**subject.fields, name: [value, *held[1:]]}
                check(subject, subject.changed(changed))
        if isinstance(held, dict):
            for key in held:
                for value in VALUES:
                    changed = {**subject.fields, name: {**held, key: value}}
                    check(subject, subject.changed(changed))


def test_required_fields_are_required(subject: Subject) -> None:
    for name in ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"):
        config = subject.changed({k: v for k, v in subject.fields.items() if k != name})
        with pytest.raises(KernelgenError, match=f"{name}: is missing") as raised:
            subject.architecture.read(ConfigFile("config.json", config))
        assert raised.value.exit_code == 2


def test_all_problems_are_told_together(subject: Subject) -> None:
    wrong = {"hidden_size": -1, "vocab_size": 2**40, "num_hidden_layers": None}
    config = subject.changed({**subject.fields, **wrong})
    with pytest.raises(KernelgenError) as raised:
        subject.architecture.read(ConfigFile("config.json", config))
    for name in ("hidden_size: is -1", "vocab_size: is 1099511627776", "num_hidden_layers: is No"):
        assert name in str(raised.value)


JSON = st.recursive(
    st.one_of(st.sampled_from(VALUES[:-4]), st.integers(), st.text(max_size=20)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(folders()), st.data())
def test_fuzz(folder, data: st.DataObject) -> None:
    subject = subject_of(folder)
    names = [*subject.fields, "rope_scaling", "rope_parameters", "quantization_config", "dtype"]
    changes = data.draw(st.dictionaries(st.sampled_from(names), JSON, min_size=1, max_size=4))
    check(subject, subject.changed({**subject.fields, **json.loads(json.dumps(changes))}))
