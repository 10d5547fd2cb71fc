"""The JSON codec: canonical text, strict reading, frozen dataclasses there and back."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelgen.core.decode import from_json
from kernelgen.core.digest import digest_bytes, digest_file, digest_json, digest_tree
from kernelgen.core.errors import UsageError
from kernelgen.core.jsonio import JsonError, dumps, dumps_readable, load_object, loads, to_json


class Kind(enum.Enum):
    FULL = "full"
    WINDOW = "window"


@dataclass(frozen=True)
class Dense:
    rows: int
    scale: float = 1.0
    kind: Literal["dense"] = "dense"

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UsageError("rows must be positive")


@dataclass(frozen=True)
class Named:
    name: str
    kind: Literal["named"] = "named"


@dataclass(frozen=True)
class Whole:
    parts: tuple[Dense | Named, ...]
    cache: Kind
    window: int | None
    sizes: Mapping[str, tuple[int, str]]
    flags: tuple[bool, ...] = ()


WHOLE = Whole((Dense(3, 2), Named("a")), Kind.WINDOW, None, {"k": (1, "x")}, (True,))

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_round_trip_of_nested_dataclasses() -> None:
    for text in (dumps(WHOLE), dumps_readable(WHOLE)):
        again = from_json(Whole, loads(text, source="t"), source="t")
        assert again == WHOLE
        assert digest_json(again) == digest_json(WHOLE)  # 2 in a float field is 2.0 both times


def test_canonical_text_is_pinned() -> None:
    text = '{"a":[1,2.5,null,true],"b":"\\u00e9"}'
    assert dumps({"b": "é", "a": (1, 2.5, None, True)}) == text
    assert digest_json({"a": 1}) == digest_bytes('{"a":1}')


@given(json_values)
@settings(max_examples=60, deadline=None)
def test_any_json_survives(value: object) -> None:
    assert loads(dumps(value), source="t") == to_json(value) == value
    assert loads(dumps_readable(value), source="t") == value


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, {1, 2}, object()])
def test_what_has_no_json_form(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        dumps(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "key 'a' occurs twice"),
        ("[NaN]", "NaN is not"),
        ("[-Infinity]", "-Infinity is not"),
        ("1e999", "beyond float64"),
        ("1" * 5000, "too many digits"),
        ("[" * 100_000, "nested deeper"),
        ("[" * 70 + "]" * 70, "nested deeper than 64"),
        ('{"a":\n  x}', "line 2 column 3"),
        (b"\xff\xfe", "not UTF-8"),
        ("", "not JSON"),
    ],
)
def test_refused_text_names_its_file(text: str | bytes, said: str) -> None:
    with pytest.raises(JsonError) as caught:
        loads(text, source="some/file.json")
    assert str(caught.value).startswith("some/file.json") and said in str(caught.value)
    assert caught.value.exit_code == 2


def test_size_is_bounded(tmp_path) -> None:
    path = tmp_path / "big.json"
    path.write_text(json.dumps({"a": "x" * 1000}))
    assert load_object(path)["a"]
    with pytest.raises(UsageError, match=r"big\.json: is longer than 100 bytes"):
        load_object(path, max_bytes=100)
    with pytest.raises(UsageError, match="must hold an object, not array"):
        path.write_text("[]")
        load_object(path)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(JsonError):
        loads(data, source="t")


def test_all_problems_of_one_object_at_once() -> None:
    value = loads(
        '{"parts": [{"rows": 1.5, "kind": "dense"}, {"kind": "other"}, {"rows": 0,'
        ' "kind": "dense"}], "cache": "half", "window": "w", "sizes": {"k": [1]},'
        ' "flags": [1], "extra": 0}',
        source="t",
    )
    with pytest.raises(UsageError) as caught:
        from_json(Whole, value, source="f.json")
    text = str(caught.value)
    for part in (
        "f.json: 8 problems",
        "extra: unknown field",
        "parts[0].rows: is 1.5 (allowed: an integer)",
        "parts[1]: is object (allowed: Dense or Named)",
        "parts[2]: rows must be positive",
        "cache: is 'half' (allowed: 'full', 'window')",
        "window: is 'w' (allowed: an integer or null)",
        "sizes.k: is array (allowed: an array of 2)",
        "flags[0]: is 1 (allowed: a boolean)",
    ):
        assert part in text


def test_missing_field_and_wrong_top() -> None:
    with pytest.raises(UsageError, match="name: is missing"):
        from_json(Named, {}, source="f")
    with pytest.raises(UsageError, match="is array"):
        from_json(Named, [], source="f")


@given(json_values)
@settings(max_examples=60, deadline=None)
def test_any_json_is_decoded_or_refused(value: object) -> None:
    with suppress(UsageError):
        from_json(Whole, loads(dumps(value), source="t"), source="t")


def test_digest_of_files(tmp_path) -> None:
    (tmp_path / "a").write_text("1")
    assert digest_file(tmp_path / "a") == digest_bytes("1")
    before = digest_tree(tmp_path)
    (tmp_path / "b").write_text("2")
    assert digest_tree(tmp_path) != before
