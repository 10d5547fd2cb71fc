"""Owns finding the longest known prefix of a request that every cache group can go on from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..artifact.manifest import PAGE_TOKENS, CacheGroup
from .content import Content
from .groups import first_live_page


@dataclass(frozen=True)
class Hit:
    """`tokens` need not be computed. `pages[g]` are those of group g that can still be read: the
    last ones before `tokens`. `alone[g]` is how many tokens the group would give by itself."""

    tokens: int
    pages: tuple[tuple[int, ...], ...]
    alone: tuple[int, ...]


@dataclass
class PrefixCounts:
    """Tokens that were looked up and found, in all and (`alone`) as each group would have it.

    A group whose number is far below the others' spoils their hits.
    """

    queried: int = 0
    hit: int = 0
    alone: list[int] = field(default_factory=list)

    def count(self, queried: int, hit: Hit) -> None:
        """Add one request."""
        self.queried += queried
        self.hit += hit.tokens
        self.alone = [a + b for a, b in zip(self.alone, hit.alone, strict=True)]


def find_prefix(
    contents: Sequence[Content], groups: Sequence[CacheGroup], digests: Sequence[bytes], most: int
) -> Hit:
    """Return the longest prefix of at most `most` pages from which all groups can go on;
    `contents[g]` knows the pages of group g.

    A group without a window needs every page from the start; one with a window those that the next
    token reads. The longest common one is a fixed point: each group shortens what the others left.
    """
    alone = [_shortened(contents[g], g, group, digests, most) for g, group in enumerate(groups)]
    pages = min(alone, default=0)
    before = -1
    while before != pages:
        before = pages
        for g, group in enumerate(groups):
            if group.window is not None:  # what is left of a whole prefix is one, too
                pages = _shortened(contents[g], g, group, digests, pages)
    tokens = pages * PAGE_TOKENS
    found = []
    for g, group in enumerate(groups):
        live = digests[first_live_page(group, tokens) : pages]
        places = [contents[g].find(g, d) for d in live]
        found.append(tuple(page for page in places if page is not None))
    return Hit(tokens, tuple(found), tuple(count * PAGE_TOKENS for count in alone))


def _shortened(
    content: Content, g: int, group: CacheGroup, digests: Sequence[bytes], pages: int
) -> int:
    """Return the most pages, at most `pages`, after which group `g` alone can go on."""
    if group.window is None:
        for i in range(pages):
            if content.find(g, digests[i]) is None:
                return i
        return pages
    at = pages  # pages [at, pages) are known to be there
    while at > first_live_page(group, pages * PAGE_TOKENS):
        at -= 1
        if content.find(g, digests[at]) is None:
            pages = at
    return pages
