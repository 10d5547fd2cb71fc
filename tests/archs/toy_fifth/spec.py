"""Owns reading a config that spells its keys in its own way."""

from __future__ import annotations

from kernelgen.spec.config import ConfigFile
from kernelgen.spec.decoder_fields import read_eos_ids, read_eps, read_sizes, read_stored_dtype
from kernelgen.spec.fields import Fields
from kernelgen.spec.model import Activation, AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from kernelgen.spec.rope import RopeSpec
from kernelgen.spec.unread import refuse_unread


def read_spec(config: ConfigFile) -> ModelSpec:
    """Every `rotate_every`-th layer is rotated, the others carry no positions."""
    fields = Fields.of(config)
    sizes = read_sizes(fields, max_positions=256)
    every = fields.integer("rotate_every", 1, 64, 2)
    rope = RopeSpec(sizes.head_dim, fields.number("base", 2.0, 1e6, 1000.0))
    eps = read_eps(fields, 1e-5)
    mlp = MlpSpec(sizes.intermediate, Activation.RELU2)

    def layer(i: int) -> LayerSpec:
        return LayerSpec(
            AttentionSpec(
                heads=sizes.heads,
                kv_heads=sizes.kv_heads,
                head_dim=sizes.head_dim,
                scale=sizes.head_dim**-0.5,
                rope=rope if i % every == 0 else None,
            ),
            mlp,
            eps,
        )

    spec = ModelSpec(
        architecture="toy_fifth",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        hidden=sizes.hidden,
        vocab=sizes.vocab,
        max_positions=sizes.max_positions,
        norm_eps=eps,
        tied_head=True,
        stored=read_stored_dtype(fields),
        eos_ids=read_eos_ids(fields, sizes.vocab, None),
    )
    refuse_unread(fields)
    fields.finish()
    return spec
