"""Owns the sampler in NumPy: the law that every generated sampler is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .params import SamplingParams
from .watermark import Watermark, context_of, is_fresh, watermark_noise

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.floating]


def murmur3_words(seed: int, position: int, tokens: npt.NDArray[np.integer]) -> Words:
    """Return MurmurHash3-x86-32 (hash seed 0) of 16 little-endian bytes: seed, position, token.

    `seed` is int64, `position` int32; the result has the shape of `tokens`.
    """
    words = np.empty((4, *tokens.shape), np.uint32)
    for i, part in enumerate((seed, seed >> 32, position)):
        words[i] = part & 0xFFFFFFFF
    words[3] = tokens
    state = np.zeros(tokens.shape, np.uint32)
    for word in words:
        k = word * np.uint32(0xCC9E2D51)
        k = _rotate(k, 15) * np.uint32(0x1B873593)
        state = _rotate(state ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    state = state ^ np.uint32(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint32(shift))) * np.uint32(factor)
    return state ^ (state >> np.uint32(16))


def _rotate(value: Words, bits: int) -> Words:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


def uniform(words: Words) -> npt.NDArray[np.float64]:
    """Return (word + 0.5) · 2⁻³², strictly between 0 and 1."""
    return (words.astype(np.float64) + 0.5) * 2.0**-32


def gumbel_noise(
    seed: int, position: int, tokens: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """Return -log(-log1p(-u)): the noise of each token, whatever batch or slot it stands in."""
    noise: npt.NDArray[np.float64] = -np.log(
        -np.log1p(-uniform(murmur3_words(seed, position, tokens)))
    )
    return noise


@dataclass(frozen=True)
class Rules:
    """What changes the logits of one request, or marks its choices, and the tokens it looks at.

    `ends` are the ids that `min_tokens` holds back. `mark` None: ordinary noise. `allowed`: a bit
    for each token that a grammar lets through, int32 [ceil(vocab / 32)], lowest first.
    """

    params: SamplingParams
    prompt: Sequence[int]
    generated: Sequence[int] = ()
    ends: Sequence[int] = ()
    mark: Watermark | None = None
    allowed: npt.NDArray[np.int32] | None = None


def edited(logits: Floats, rules: Rules) -> npt.NDArray[np.float32]:
    """Return float32 `logits` [vocab] as the choice sees them, in this order: biases, allowed
    ids, ends held back, repetition, frequency and presence penalties, bad words, the grammar.

    Every step rounds to float32, so that samplers must give the same bits.
    """
    params, x = rules.params, logits.astype(np.float32)
    for token, bias in params.logit_bias.items():
        x[token] += np.float32(bias)
    if params.allowed_token_ids is not None:
        kept = np.full_like(x, -np.inf)
        kept[list(params.allowed_token_ids)] = x[list(params.allowed_token_ids)]
        x = kept
    if len(rules.generated) < params.min_tokens:
        x[list(rules.ends)] = -np.inf
    x = _penalised(x, rules)
    for word in params.bad_word_ids:
        start = len(rules.generated) - len(word) + 1
        if start >= 0 and tuple(rules.generated[start:]) == word[:-1]:
            x[word[-1]] = -np.inf
    if rules.allowed is not None:
        bits = np.unpackbits(rules.allowed.view(np.uint8), bitorder="little")
        x[bits[: len(x)] == 0] = -np.inf
    return x


def _penalised(x: npt.NDArray[np.float32], rules: Rules) -> npt.NDArray[np.float32]:
    params = rules.params
    count = np.bincount(np.asarray(rules.generated, np.int64), minlength=len(x)).astype(np.float32)
    seen = count > 0
    seen[list(rules.prompt)] = True
    factor = np.float32(params.repetition_penalty)
    with np.errstate(invalid="ignore"):
        x = np.where(seen, np.where(x > 0, x / factor, x * factor), x)
    x = x - np.float32(params.frequency_penalty) * count
    return x - np.where(count > 0, np.float32(params.presence_penalty), np.float32(0))


def keep_min_p(logits: Floats, p: float) -> Floats:
    """Return scaled `logits` [vocab] with all less likely than p times the likeliest -inf."""
    if p <= 0:
        return logits
    return np.where(logits >= logits.max() + np.log(np.float64(p)), logits, -np.inf)


def keep_top_k(logits: Floats, k: int) -> Floats:
    """Return `logits` [vocab] with all but the k largest -inf; ties by lowest id; 0 is off."""
    if k <= 0 or k >= len(logits):
        return logits
    order = np.argsort(-logits, kind="stable")
    kept = np.full_like(logits, -np.inf)
    kept[order[:k]] = logits[order[:k]]
    return kept


def keep_top_p(logits: Floats, p: float) -> Floats:
    """Return `logits` [vocab] with all outside the smallest set of mass ≥ p -inf, at least one."""
    if p >= 1:
        return logits
    order = np.argsort(-logits, kind="stable")
    mass = np.exp(logits[order].astype(np.float64) - float(logits[order[0]]))
    before = np.cumsum(mass) - mass
    count = max(1, int(np.count_nonzero(before < p * mass.sum())))
    kept = np.full_like(logits, -np.inf)
    kept[order[:count]] = logits[order[:count]]
    return kept


def kept(
    logits: Floats, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Floats:
    """Return `logits` [vocab] over `temperature`, -inf where min-p, top-k or top-p drops them."""
    scaled = keep_min_p(logits / np.float32(temperature), min_p)
    return keep_top_p(keep_top_k(scaled, top_k), top_p)


def sample(
    logits: Floats,
    position: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    min_p: float = 0.0,
    rules: Rules | None = None,
) -> int:
    """Return the id chosen from `logits` [vocab] for sequence position `position`; -2 for a NaN."""
    if np.isnan(logits).any():
        return -2
    logits = logits if rules is None else edited(logits, rules)
    if temperature == 0:
        return int(np.argmax(logits))
    scaled, tokens = kept(logits, temperature, top_k, top_p, min_p), np.arange(len(logits))
    mark = None if rules is None else rules.mark
    if rules is not None and mark is not None and is_fresh(mark, rules.prompt, rules.generated):
        context = context_of(rules.generated, mark.context_width)
        return int(np.argmax(scaled + watermark_noise(mark.key, context, tokens)))
    return int(np.argmax(scaled + gumbel_noise(seed, position, tokens)))


@dataclass(frozen=True)
class Likelihood:
    """Log-probability and rank (1 is the likeliest) of a token, and those of the likeliest ones."""

    token: int
    logprob: float
    rank: int
    likeliest: tuple[tuple[int, float], ...] = ()


def likelihood(logits: Floats, token: int, count: int) -> Likelihood:
    """Return what the model's own `logits` [vocab] (not the edited ones) say of `token`."""
    wide = logits.astype(np.float64)
    log_sum = float(wide.max() + np.log(np.exp(wide - wide.max()).sum()))
    first = np.argsort(-wide, kind="stable")[:count].tolist()
    rank = int(np.count_nonzero(logits > logits[token])) + 1
    likeliest = tuple((int(i), float(wide[i]) - log_sum) for i in first)
    return Likelihood(token, float(wide[token]) - log_sum, rank, likeliest)
