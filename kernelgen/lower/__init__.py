"""Owns the building blocks that architectures compose from ops: norms, attention, MLP, decoder."""

from kernelgen.lower.attention import attention
from kernelgen.lower.decoder import decoder_layer, lower_decoder
from kernelgen.lower.linear import linear
from kernelgen.lower.mixer import kept, mixer
from kernelgen.lower.mlp import activation_expr, gated_mlp
from kernelgen.lower.moe import mixture
from kernelgen.lower.norm import rms_norm
from kernelgen.lower.residual import add_residual
from kernelgen.lower.scope import Numerics, Scope

__all__ = [
    "Numerics",
    "Scope",
    "activation_expr",
    "add_residual",
    "attention",
    "decoder_layer",
    "gated_mlp",
    "kept",
    "linear",
    "lower_decoder",
    "mixer",
    "mixture",
    "rms_norm",
]
