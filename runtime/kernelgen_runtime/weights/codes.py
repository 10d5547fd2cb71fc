"""Owns packed integers in torch: bit streams, nibbles and AWQ's order, on any device."""

import torch

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""column c of eight lies in nibble AWQ_PLACES[c] of the word"""


def unpack_stream(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Return the first `count` codes of each row of int32 words [n, W] as uint8 [n, count].

    Element i takes bits i·bits … of the little-endian stream.
    """
    octets = _octets(words)
    if bits == 8:
        return octets[:, :count]
    if bits == 4:
        return unpack_nibbles(octets)[:, :count]
    first = torch.arange(count, device=words.device) * bits
    at, shift = first // 8, (first % 8).to(torch.int16)
    padded = torch.nn.functional.pad(octets, (0, 1)).to(torch.int16)
    pair = padded[:, at] | (padded[:, at + 1] << 8)
    # The sign may have spread into the upper bits: the mask takes it off.
    return ((pair >> shift) & ((1 << bits) - 1)).to(torch.uint8)


def unpack_nibbles(octets: torch.Tensor) -> torch.Tensor:
    """Return [n, 2L] codes of bytes [n, L], low half first."""
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(1)


def unpack_awq(words: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` codes of each row, eight a word in AWQ's order."""
    codes = unpack_nibbles(_octets(words))
    places = torch.tensor(AWQ_PLACES, device=words.device)
    return codes.view(len(codes), -1, 8)[:, :, places].flatten(1)[:, :count]


def _octets(words: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each row; flat first, since a lone column may have any stride."""
    return words.contiguous().flatten().view(torch.uint8).view(len(words), -1)
