"""Owns the sampler in NumPy: the law that every generated sampler is compared with."""

import numpy as np
import numpy.typing as npt

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


def sample(
    logits: Floats,
    position: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> int:
    """Return the id chosen from `logits` [vocab] for sequence position `position`; -2 for a NaN."""
    if np.isnan(logits).any():
        return -2
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = keep_top_p(keep_top_k(logits / np.float32(temperature), top_k), top_p)
    return int(np.argmax(scaled + gumbel_noise(seed, position, np.arange(len(logits)))))
