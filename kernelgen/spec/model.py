"""Owns `ModelSpec`: what a model computes, in numbers, enums and checked identifiers only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.spec.experts import RouterSpec
from kernelgen.spec.rope import RopeSpec


class Activation(Enum):
    """Scalar functions of an MLP; values are the names that `hidden_act` uses."""

    SILU = "silu"
    GELU_TANH = "gelu_pytorch_tanh"
    RELU2 = "relu2"


@dataclass(frozen=True)
class AttentionSpec:
    """Grouped-query attention of one layer; `window = None` sees every earlier token."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """factor of q·k before the softmax"""
    rope: RopeSpec | None
    """None: positions are not encoded in this layer"""
    window: int | None = None
    """position t sees t − window + 1 … t"""
    sinks: bool = False
    """a learned logit for each head joins the softmax's denominator"""
    qk_norm: bool = False
    """root-mean-square norm over each head of q and k, before the rotation"""
    qkv_bias: bool = False
    out_bias: bool = False
    kv_share_with: int | None = None
    """an earlier layer whose keys and values this one reads: it has none of its own"""


@dataclass(frozen=True)
class LatentSpec:
    """Attention over one latent row a token, from which the keys and values of all heads come.

    A head's key is `nope` columns made from the latent beside `beside` columns that all heads
    share; positions are not encoded.
    """

    heads: int
    rank: int
    """columns of the latent"""
    nope: int
    beside: int
    value_dim: int
    norm_eps: float
    """of the norms of latents"""
    query_rank: int | None = None
    """columns of the latent that queries come from; None: they come from the row itself"""
    gate: bool = False
    """the result is weighted by the sigmoid of a projection of the row"""
    window: ClassVar[int | None] = None
    rope: ClassVar[RopeSpec | None] = None

    @property
    def scale(self) -> float:
        """Factor of q·k before the softmax."""
        return 1.0 / math.sqrt(self.nope + self.beside)


@dataclass(frozen=True)
class DeltaSpec:
    """The gated delta rule with a short convolution before it and a gated norm behind it."""

    heads: int
    head_dim: int
    taps: int
    """rows that the convolution mixes, the token's own included"""
    decay_rank: int
    """columns between the two matrices of the decay"""
    gate_rank: int | None
    """the same of the output gate; None: it is one matrix"""
    bound: float | None = None
    """the lowest logarithm of a decay; None: there is none, and a softplus in its place"""
    window: ClassVar[int | None] = None
    rope: ClassVar[RopeSpec | None] = None


MixerSpec = AttentionSpec | LatentSpec | DeltaSpec
"""how a layer mixes tokens"""


@dataclass(frozen=True)
class MlpSpec:
    """Gated MLP: `down(act(gate(x)) · up(x))`."""

    intermediate: int
    activation: Activation
    bias: bool = False
    limit: float | None = None
    """before the activation, gate is at most this and up within ± this"""
    gate_cap: float | None = None
    """the factor that gate is of its own sigmoid becomes `cap · tanh(gate / cap)`"""
    up_cap: float | None = None
    """up becomes `cap · tanh(up / cap)`"""


@dataclass(frozen=True)
class MoeSpec:
    """Routed experts, each a gated MLP without biases, and one that every token goes through."""

    router: RouterSpec
    expert: MlpSpec
    latent: int | None = None
    """columns that the routed experts work on, taken from the token's by one matrix and back by
    another; None: they work on the token itself"""
    latent_eps: float | None = None
    """of a norm of what the experts of a token add up to; None: there is none"""
    latent_ranks: int = 1
    """ranks that take the latent's columns in turn to the token's width, and add up what they
    make; this is the first"""
    shared: MlpSpec | None = None
    shared_gate: bool = False
    """the shared one is weighted by the sigmoid of a projection of the token"""

    @property
    def intermediate(self) -> int:
        """Of one expert."""
        return self.expert.intermediate


@dataclass(frozen=True)
class DepthSpec:
    """Where a layer stands among blocks of layers: what it reads is mixed from their sums.

    A block's sum is closed when the first layer of the next one has read it.
    """

    closed: int
    """blocks that are closed before the layer"""
    closes: bool
    """the layer closes the sum that it finds, and begins another one"""


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer; equal layers are lowered, planned and compiled once."""

    attention: MixerSpec
    mlp: MlpSpec | MoeSpec
    norm_eps: float
    residual_multiplier: float = 1.0
    depth: DepthSpec | None = None
    """None: a residual stream"""


@dataclass(frozen=True)
class CacheSpec:
    """Keys and values that one layer reads, and keeps unless another layer does."""

    kv_heads: int
    head_dim: int
    window: int | None
    dtype: DType
    kv_share_with: int | None = None
    """the layer that keeps them"""
    per_request: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the keys of one token; the values have the same."""
        return (self.kv_heads, self.head_dim)

    @property
    def elements(self) -> int:
        """Of one token."""
        return 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class LatentCacheSpec:
    """The one row that a layer keeps of each token, key and value of all heads."""

    width: int
    dtype: DType
    window: ClassVar[int | None] = None
    kv_share_with: ClassVar[int | None] = None
    per_request: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one token."""
        return (self.width,)

    @property
    def elements(self) -> int:
        """Of one token."""
        return self.width


@dataclass(frozen=True)
class StateSpec:
    """What a scan of one layer carries from step to step: one tensor a request, however long."""

    shape: tuple[int, ...]
    dtype: DType
    window: ClassVar[int | None] = None
    kv_share_with: ClassVar[int | None] = None
    per_request: ClassVar[bool] = True

    @property
    def elements(self) -> int:
        """Of one request."""
        return math.prod(self.shape)


KeptSpec = CacheSpec | LatentCacheSpec | StateSpec
"""what a layer keeps between steps"""


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only model; `architecture` is the checked name of the folder that read it."""

    architecture: str
    layers: tuple[LayerSpec, ...]
    hidden: int
    vocab: int
    max_positions: int
    norm_eps: float
    """of the last norm, before the head"""
    tied_head: bool
    """the head multiplies with the embedding table"""
    stored: DType
    """what the checkpoint's matrices are stored in"""
    embedding_multiplier: float = 1.0
    logits_scaling: float = 1.0
    """logits are divided by it"""
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    skipped_layers: int = 0
    """behind the last layer: draft blocks of the checkpoint that are not read"""

    @property
    def closed_blocks(self) -> int | None:
        """Blocks of layers that are closed behind the last one; None: a residual stream."""
        depth = self.layers[-1].depth
        return None if depth is None else depth.closed + depth.closes

    def kinds(self) -> tuple[tuple[LayerSpec, ...], tuple[int, ...]]:
        """The distinct layers in order of first use, and for each layer the number of its kind."""
        numbers: dict[LayerSpec, int] = {}
        by_identity: dict[int, int] = {}  # layers are mostly one shared object: hash it once
        for layer in self.layers:
            if id(layer) not in by_identity:
                by_identity[id(layer)] = numbers.setdefault(layer, len(numbers))
        return tuple(numbers), tuple(by_identity[id(layer)] for layer in self.layers)
