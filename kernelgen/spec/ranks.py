"""Owns what one of several tensor-parallel ranks has of a model: its share of heads and columns."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.core.errors import ProblemList
from kernelgen.spec.model import (
    DeltaSpec,
    LatentSpec,
    LayerSpec,
    MixerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
)


def of_rank(spec: ModelSpec, ranks: int) -> ModelSpec:
    """The model as the first of `ranks` has it: heads, columns of MLPs and experts, vocabulary.

    What all ranks have whole stays: norms, routers, narrow products before a cut one. `UsageError`
    names what `ranks` does not divide. Between its kernels the ranks add up what they have made,
    see `collectives`.
    """
    problems = ProblemList("--tp")
    share = _Share(ranks, problems)
    kinds = {layer: _layer(layer, share) for layer in dict.fromkeys(spec.layers)}
    layers = tuple(kinds[layer] for layer in spec.layers)
    vocab = share.of("words of the vocabulary", spec.vocab)
    problems.raise_if_any()
    return replace(spec, layers=layers, vocab=vocab)


def collectives(spec: ModelSpec, ranks: int) -> int:
    """Sums over ranks in one step: behind each mixer, behind each MLP or its experts, before a norm
    of narrow experts' results, of embeddings, and the gathering of logits."""
    if ranks == 1:
        return 0
    narrow = sum(isinstance(k.mlp, MoeSpec) and k.mlp.latent is not None for k in spec.layers)
    return 2 * len(spec.layers) + narrow + 2


class _Share:
    """Divides by the ranks, noting what does not divide."""

    def __init__(self, ranks: int, problems: ProblemList) -> None:
        self.ranks, self._problems, self._seen = ranks, problems, set[str]()

    def of(self, what: str, count: int, least: int = 0) -> int:
        """A rank's part of `count`; at least `least`, where ranks may hold the same."""
        if count % self.ranks == 0:
            return count // self.ranks
        if least and self.ranks % count == 0:
            return least
        if what not in self._seen:
            self._seen.add(what)
            self._problems.add(f"is {self.ranks}", allowed=f"what divides {count} {what}")
        return count


def _layer(layer: LayerSpec, share: _Share) -> LayerSpec:
    return replace(layer, attention=_mixer(layer.attention, share), mlp=_feed(layer.mlp, share))


def _mixer(mixer: MixerSpec, share: _Share) -> MixerSpec:
    heads = share.of("heads", mixer.heads)
    if isinstance(mixer, (DeltaSpec, LatentSpec)):
        return replace(mixer, heads=heads)
    kv_heads = share.of("heads of keys and values", mixer.kv_heads, least=1)
    return replace(mixer, heads=heads, kv_heads=kv_heads)


def _feed(mlp: MlpSpec | MoeSpec, share: _Share) -> MlpSpec | MoeSpec:
    if isinstance(mlp, MlpSpec):
        return replace(mlp, intermediate=share.of("columns of an MLP", mlp.intermediate))
    expert = replace(mlp.expert, intermediate=share.of("columns of an expert",
                                                       mlp.expert.intermediate))  # fmt: skip
    shared = None if mlp.shared is None else _feed(mlp.shared, share)
    assert shared is None or isinstance(shared, MlpSpec)
    ranks = share.ranks if mlp.latent is not None and mlp.latent % share.ranks == 0 else 1
    return replace(mlp, expert=expert, shared=shared, latent_ranks=ranks)
