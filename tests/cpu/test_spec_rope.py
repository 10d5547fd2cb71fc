"""Rotary frequencies: against transformers' own functions, and their limits in closed form."""

from __future__ import annotations

import itertools
import math

import pytest

from kernelgen.spec.config import ConfigFile
from kernelgen.spec.fields import Fields
from kernelgen.spec.rope import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling
from kernelgen.spec.rope_fields import read_rope

SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn with ramp given": {
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 24,
        "beta_slow": 2,
        "truncate": False,
    },
    "yarn with scales": {
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "yarn with its factor": {
        "factor": 8.0,
        "original_max_position_embeddings": 2048,
        "attention_factor": 1.25,
    },
}
SIZES = [(64, 10000.0), (128, 1000000.0), (12, 500.0)]
FLOAT32 = 2e-6  # the framework computes in float32


def read(fields: dict, dim: int = 64, positions: int = 8192) -> RopeSpec:
    reader = Fields.of(ConfigFile("config.json", fields))
    rope = read_rope(reader, dim, positions)
    reader.finish()
    return rope


@pytest.mark.parametrize(("dim", "theta"), SIZES)
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_the_frameworks(name: str, dim: int, theta: float) -> None:
    pytest.importorskip("transformers")
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = name.split()[0]
    parameters = {"rope_type": kind, "rope_theta": theta, **SCALINGS[name]}
    rope = read({"rope_parameters": parameters, "max_position_embeddings": 8192}, dim)
    if kind == "default":
        expected, scale = [theta ** (-2 * i / dim) for i in range(dim // 2)], 1.0
    else:
        config = AutoConfig.for_model(
            "mistral",
            rope_parameters=dict(parameters),
            head_dim=dim,
            hidden_size=4 * dim,
            num_attention_heads=4,
            max_position_embeddings=8192,
        )
        tensor, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        expected = tensor.tolist()
    assert rope.inv_freq() == pytest.approx(expected, rel=FLOAT32)
    assert rope.scale == pytest.approx(scale, rel=1e-12)


def test_limits_of_the_scalings() -> None:
    plain = RopeSpec(32, 10000.0).inv_freq()
    assert plain[0] == 1.0 and plain[-1] == pytest.approx(10000.0 ** (-30 / 32))
    halved = RopeSpec(32, 10000.0, LinearScaling(2.0)).inv_freq()
    assert halved == pytest.approx([f / 2 for f in plain])
    scaled = RopeSpec(32, 10000.0, Llama3Scaling(8.0, 1.0, 4.0, 256)).inv_freq()
    assert scaled[0] == plain[0] and scaled[-1] == plain[-1] / 8
    assert all(a >= b for a, b in itertools.pairwise(scaled))
    yarn = RopeSpec(32, 10000.0, YarnScaling(8.0, 256, 32.0, 1.0, 1.1, True))
    assert yarn.inv_freq()[0] == plain[0]
    assert yarn.inv_freq()[-1] == pytest.approx(plain[-1] / 8)
    assert yarn.scale == 1.1


def test_a_band_without_width_is_a_step() -> None:
    """All frequencies above or below it; no division by zero."""
    yarn = RopeSpec(8, 10000.0, YarnScaling(4.0, 1, 32.0, 32.0, 1.0, True))
    assert all(map(math.isfinite, yarn.inv_freq()))


def test_both_spellings_read_alike() -> None:
    section = {"factor": 4.0, "original_max_position_embeddings": 1024}
    old = read({"rope_theta": 500.0, "rope_scaling": {"type": "yarn", **section}})
    mixed = read({"rope_theta": 500, "rope_scaling": {"rope_type": "yarn", **section}})
    new = read({"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, **section}})
    assert old == mixed == new


def test_nothing_said_is_the_plain_rotation() -> None:
    for fields in ({}, {"rope_scaling": None}, {"rope_parameters": {}, "rope_theta": None}):
        assert read(fields) == RopeSpec(64, 10000.0)


@pytest.mark.row("R-060")
def test_context_before_scaling() -> None:
    section = {"rope_type": "yarn", "factor": 4.0}
    inner = {"rope_scaling": {**section, "original_max_position_embeddings": 777}}
    assert read(inner).scaling.original_positions == 777
    outer = {**inner, "original_max_position_embeddings": 555}
    assert read(outer).scaling.original_positions == 555
    assert read({"rope_scaling": section}).scaling.original_positions == 8192
