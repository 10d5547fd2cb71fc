"""Owns the digests of a sequence's pages: each stands for all tokens from the start to its end."""

import hashlib
import os
import struct
from collections.abc import Sequence

from ..artifact.manifest import PAGE_TOKENS

SEED_VARIABLE = "KERNELGEN_PREFIX_SEED"
_PAGE = struct.Struct(f"<{PAGE_TOKENS}I")


def root_digest(salt: str | None = None, seed: str | None = None) -> bytes:
    """Return what the first page's digest is chained to: the same in every process.

    `salt` keeps requests apart that must not learn from each other's timing; `seed` does so for
    whole processes, None takes environment variable KERNELGEN_PREFIX_SEED.
    """
    seed = os.environ.get(SEED_VARIABLE, "") if seed is None else seed
    root = hashlib.sha256(b"kernelgen pages 1\0" + seed.encode(errors="surrogateescape")).digest()
    if salt is None:
        return root
    return hashlib.sha256(b"salt\0" + root + salt.encode(errors="surrogatepass")).digest()


class Chain:
    """Digests of the full pages of `tokens`, a list that grows at its end; made when asked for.

    `replayed` is how many tokens a repetition of the request brings along: its prompt.
    """

    def __init__(self, tokens: Sequence[int], salt: str | None = None) -> None:
        self.replayed = len(tokens)
        self._tokens = tokens
        self._last = root_digest(salt)
        self._digests: list[bytes] = []

    def digest(self, page: int) -> bytes | None:
        """Return the digest of a page, None where it was not made yet."""
        return self._digests[page] if page < len(self._digests) else None

    def digests(self, count: int) -> list[bytes]:
        """Return the digests of the first `count` pages at least; all their tokens are known."""
        for i in range(len(self._digests), count):
            page = self._tokens[PAGE_TOKENS * i : PAGE_TOKENS * (i + 1)]
            self._last = hashlib.sha256(self._last + _PAGE.pack(*page)).digest()
            self._digests.append(self._last)
        return self._digests
