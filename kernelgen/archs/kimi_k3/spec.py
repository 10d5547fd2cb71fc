"""Owns reading a config: the text model inside it, its layers, where each stands over depth."""

from __future__ import annotations

from kernelgen.archs.kimi_k3.feeds import read_feeds
from kernelgen.archs.kimi_k3.mixers import read_mixers
from kernelgen.core.errors import UsageError, quote
from kernelgen.core.jsonio import json_kind
from kernelgen.spec.config import ConfigFile
from kernelgen.spec.decoder_fields import (
    read_bos_id,
    read_eos_ids,
    read_eps,
    read_stored_dtype,
)
from kernelgen.spec.fields import Fields
from kernelgen.spec.model import DepthSpec, LayerSpec, ModelSpec
from kernelgen.spec.unread import refuse_unread

_MOST_LAYERS, _MOST_POSITIONS = 512, 1 << 22
_TEXT = "text_config"
_OUTSIDE = ("vision_config", "image_placeholder", "media_placeholder_token_id", "auto_map")
"""keys of the model around the text decoder"""
_FORMATS = "quantization_config"
"""read by whoever knows the checkpoint"""
_DEAD = ("head_dim", "rope_theta", "rope_scaling", "qk_head_dim", "layer_types", "auto_map")
"""keys that change nothing: positions are not encoded, lists say which layer is what"""
_NAMES = ("architectures", "model_type")
"""of the whole model outside, of its text model inside"""
_DRAFTS = "num_nextn_predict_layers"


def read_spec(config: ConfigFile) -> ModelSpec:
    """The text model that a config describes; all its problems at once."""
    outer = Fields.of(config)
    fields = outer.section(_TEXT)
    if fields is None:
        outer.note_wrong(_TEXT, outer.raw(_TEXT), "an object")
        outer.finish()
        raise UsageError(f"{_TEXT} is no object", where=config.source)
    layers = fields.integer("num_hidden_layers", 1, _MOST_LAYERS)
    vocab = fields.integer("vocab_size", 1, 1 << 22)
    hidden = fields.integer("hidden_size", 1, 1 << 16)
    eps = read_eps(fields, 1e-5)
    spec = ModelSpec(
        architecture="kimi_k3",
        layers=tuple(
            LayerSpec(mixer, feed, eps, depth=depth)
            for mixer, feed, depth in zip(
                read_mixers(fields, layers),
                read_feeds(fields, layers, eps),
                _depths(fields, layers),
                strict=True,
            )
        ),
        hidden=hidden,
        vocab=vocab,
        max_positions=fields.integer("max_position_embeddings", 1, _MOST_POSITIONS, 1 << 20),
        norm_eps=eps,
        tied_head=fields.flag("tie_word_embeddings", False),
        stored=read_stored_dtype(fields),
        bos_id=read_bos_id(fields, vocab, None),
        eos_ids=read_eos_ids(fields, vocab, None),
        skipped_layers=fields.integer(_DRAFTS, 0, 64, 0, nullable=True),
    )
    _outside(outer, fields)
    fields.pass_over(*_DEAD, _FORMATS)
    refuse_unread(fields)
    refuse_unread(outer)
    outer.finish()
    return spec


def _outside(outer: Fields, text: Fields) -> None:
    """What is said beside the text model: it may repeat it, and not contradict it."""
    outer.pass_over(*_OUTSIDE)
    for name, value in outer.unused().items():
        if name in text.used and name not in _NAMES and value != text.raw(name):
            shown = json_kind(value) if isinstance(value, (dict, list)) else quote(value)
            outer.require(False, name, f"is {shown}, {_TEXT}.{name} is not", "no second value")


def _depths(fields: Fields, layers: int) -> list[DepthSpec | None]:
    """Where each layer stands; a block of layers is closed by the first one of the next."""
    name = "attn_res_block_size"
    if name not in fields:
        fields.raw(name)
        return [None] * layers
    size = fields.integer(name, 1, _MOST_LAYERS)
    return [DepthSpec(-(-i // size), i % size == 0) for i in range(layers)]
