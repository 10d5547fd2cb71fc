"""The field reader: every kind of wrong value, all at once, each named with what is allowed."""

from __future__ import annotations

from enum import Enum

import pytest

from kernelgen.core.errors import UnsupportedError, UsageError
from kernelgen.core.jsonio import JsonError
from kernelgen.spec.config import MAX_CONFIG_BYTES, ConfigFile, read_config
from kernelgen.spec.decoder_fields import (
    read_bos_id,
    read_eos_ids,
    read_eps,
    read_sizes,
    read_stored_dtype,
)
from kernelgen.spec.fields import Fields
from kernelgen.spec.unread import refuse_unread

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


def fields(data: dict) -> Fields:
    return Fields.of(ConfigFile("config.json", data))


def problem(read, **data) -> str:
    reader = fields(data)
    read(reader)
    with pytest.raises((UsageError, UnsupportedError)) as raised:
        reader.finish()
    return str(raised.value)


WRONG_INTEGERS = [0, -1, 2**40, 1.5, 4.0, True, "8", None, [8], {"a": 8}, 10**400]


@pytest.mark.parametrize("value", WRONG_INTEGERS, ids=lambda v: str(v)[:12])
def test_wrong_integers(value) -> None:
    message = problem(lambda f: f.integer("size", 1, 1024), size=value)
    assert message.startswith("config.json: size: is ")
    assert message.endswith("(allowed: an integer from 1 to 1024)")
    assert len(message) < 200


@pytest.mark.parametrize("value", [0, -1.0, 1e300, True, "1", None, [], 10**400], ids=str)
def test_wrong_numbers(value) -> None:
    message = problem(lambda f: f.number("eps", 1e-9, 1.0), eps=value)
    assert "config.json: eps: is " in message and "(allowed: a number from 1e-09 to 1)" in message


@pytest.mark.parametrize("value", [0, 1, "true", None], ids=str)
def test_wrong_flags(value) -> None:
    assert "(allowed: true or false)" in problem(lambda f: f.flag("tied"), tied=value)


def test_missing_fields_say_so() -> None:
    assert problem(lambda f: f.integer("size", 1, 9)) == (
        "config.json: size: is missing (allowed: an integer from 1 to 9)"
    )


class Letter(Enum):
    A = "a"
    B = "b"


def test_choices() -> None:
    letters = {"a": Letter.A, "b": Letter.B}
    assert fields({"x": "b"}).choice("x", letters) is Letter.B
    assert fields({}).choice("x", letters, Letter.A) is Letter.A
    assert problem(lambda f: f.choice("x", letters), x="c") == (
        "config.json: x: is 'c' (allowed: a, b)"
    )
    assert "is 3 (allowed: one of a, b)" in problem(lambda f: f.choice("x", letters), x=3)


def test_defaults_are_for_absent_keys_and_for_null_where_it_is_said() -> None:
    assert fields({}).integer("n", 1, 9, 5) == 5
    assert fields({"n": None}).integer("n", 1, 9, 5, nullable=True) == 5
    assert "is None" in problem(lambda f: f.integer("n", 1, 9, 5), n=None)


def test_sections_name_their_path() -> None:
    def read(f: Fields) -> None:
        inner = f.section("rope")
        assert inner is not None
        inner.integer("size", 1, 9)

    assert problem(read, rope={"size": 0}).startswith("config.json: rope.size: is 0")
    reader = fields({"rope": 3})
    assert reader.section("rope") is None
    with pytest.raises(UsageError, match="rope: is 3"):
        reader.finish()


def test_wrong_values_come_before_unsupported_ones_and_take_them_along() -> None:
    reader = fields({"n": 0, "x": "c"})
    reader.choice("x", {"a": 1})
    with pytest.raises(UnsupportedError):
        reader.finish()
    reader.integer("n", 1, 9)
    with pytest.raises(UsageError) as raised:
        reader.finish()
    assert "2 problems" in str(raised.value) and "x: is 'c'" in str(raised.value)


def test_all_problems_at_once_without_consequences() -> None:
    """A wrong head count does not also complain about what follows from it."""
    data = {**SIZES, "hidden_size": -5, "num_attention_heads": 0, "vocab_size": "many"}
    reader = fields({**data, "eos_token_id": 99})
    sizes = read_sizes(reader, max_positions=64)
    read_eos_ids(reader, sizes.vocab, None)
    with pytest.raises(UsageError) as raised:
        reader.finish()
    lines = str(raised.value).splitlines()
    assert lines[0] == "config.json: 3 problems"
    assert [line.split(":")[0].strip(" -") for line in lines[1:]] == [
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads: is 3 (allowed: a divisor of num_att"),
        ({"num_attention_heads": 5}, "hidden_size: is 64 without a head_dim (allowed: a multiple"),
        ({"num_hidden_layers": 1_000_000_000}, "num_hidden_layers: is 1000000000"),
        ({"hidden_size": 2**40}, "hidden_size: is 1099511627776"),
        ({"head_dim": 0}, "head_dim: is 0"),
        ({"intermediate_size": None}, "intermediate_size: is None"),
    ],
)
def test_sizes(change: dict, message: str) -> None:
    assert message in problem(lambda f: read_sizes(f, max_positions=64), **{**SIZES, **change})


@pytest.mark.parametrize(
    ("value", "expected"), [(None, ()), (3, (3,)), ([3, 5, 3], (3, 5)), ([], ())], ids=str
)
def test_eos_ids(value, expected) -> None:
    assert read_eos_ids(fields({"eos_token_id": value}), 100, 7) == expected


@pytest.mark.parametrize(
    "value", [100, -1, "3", [3, "x"], [3, 100], True, list(range(65))], ids=str
)
def test_wrong_eos_ids(value) -> None:
    message = problem(lambda f: read_eos_ids(f, 100, None), eos_token_id=value)
    assert "(allowed: null, or ids from 0 to 99)" in message


def test_default_ids_beyond_a_small_vocabulary_are_dropped() -> None:
    assert read_eos_ids(fields({}), 100, 7) == (7,)
    assert read_eos_ids(fields({}), 5, 7) == ()
    assert read_bos_id(fields({}), 5, 7) is None
    assert read_bos_id(fields({"bos_token_id": None}), 5, 1) is None


def test_dtypes() -> None:
    assert read_stored_dtype(fields({})).name == "bfloat16"
    assert read_stored_dtype(fields({"torch_dtype": "float16"})).name == "float16"
    assert "is 'int8' (allowed: bfloat16, float16, float32)" in problem(
        read_stored_dtype, dtype="int8"
    )
    assert "torch_dtype 'float32'" in problem(
        read_stored_dtype, dtype="float16", torch_dtype="float32"
    )


def test_epsilon_zero_is_refused() -> None:
    assert "rms_norm_eps: is 0" in problem(lambda f: read_eps(f, 1e-6), rms_norm_eps=0)


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("final_logit_softcapping", 30.0, True),
        ("final_logit_softcapping", None, False),
        ("quantization_config", {}, False),
        ("quantization_config", {"bits": 4}, True),
        ("n_routed_experts", 64, True),
        ("residual_scale", 0.5, True),
        ("sliding_window", 0, False),
        ("use_qk_norm", True, True),
        ("use_qk_norm", False, False),
        ("embedding_multiplier", 1.0, True),
        ("auto_map", {"AutoModel": "x.Y"}, True),
        ("warmup_steps", 100, False),
        ("properties", "many", False),
        ("is_decoder", True, False),
        ("vision_config", {"a": 1}, True),
        ("transformers_version", "5.0", False),
        ("x'; import os\n_bias", True, True),
    ],
)
def test_unread_keys(name: str, value, refused: bool) -> None:
    reader = fields({name: value})
    refuse_unread(reader)
    if not refused:
        reader.finish()
        return
    with pytest.raises(UnsupportedError) as raised:
        reader.finish()
    assert "which this architecture does not know" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_are_bounded_strict_objects(tmp_path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(UsageError, match="No such file"):
        read_config(path)
    for text in ("[]", "3", "{", '{"a": NaN}', '{"a": 1, "a": 2}', "", '{"a": 1e999}', "\xff"):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(JsonError):
            read_config(path)
    path.write_bytes(b'{"a": "' + b"x" * MAX_CONFIG_BYTES + b'"}')
    with pytest.raises(UsageError, match=f"longer than {MAX_CONFIG_BYTES} bytes"):
        read_config(path)
