"""Owns the pool of pages: a free list in O(1), the null page, and exact accounts."""

from array import array
from collections.abc import Iterable

NULL_PAGE = 0


class PagePool:
    """Pages 1 … `pages` - 1 to hand out; page 0 is the null page and never leaves.

    The free list is doubly linked through two integer arrays: taking from the front, returning to
    either end and (for a page whose content is found again) leaving from the middle are all O(1).
    """

    def __init__(self, pages: int) -> None:
        assert pages >= 1, "a pool holds the null page at least"
        # Position 0 is the list's own head; it can be, because page 0 is never free.
        self._next = array("q", [*range(1, pages), 0])
        self._previous = array("q", [pages - 1, *range(pages - 1)])
        self._is_free = bytearray([0] + [1] * (pages - 1))
        self.pages = pages
        self.free_pages = pages - 1

    def take(self, count: int) -> list[int] | None:
        """Hand out `count` pages, or None (and nothing changes) where fewer are free."""
        if count > self.free_pages:
            return None
        taken = []
        for _ in range(count):
            page = self._next[NULL_PAGE]
            self._unlink(page)
            taken.append(page)
        return taken

    def give_back(self, pages: Iterable[int], keep_content: bool = False) -> None:
        """Return `pages`, the first of them to be used again first.

        Pages whose content nobody can look up go to the front of the list: they are warm in the
        processor's caches and already resident. `keep_content` sends them to the back instead,
        so that they are overwritten last (least recently used first).
        """
        after = self._previous[NULL_PAGE] if keep_content else NULL_PAGE
        for page in pages:
            assert 0 < page < self.pages and not self._is_free[page], f"page {page} is not in use"
            before = self._next[after]
            self._next[after], self._previous[page] = page, after
            self._next[page], self._previous[before] = before, page
            self._is_free[page] = 1
            self.free_pages += 1
            after = page

    def _unlink(self, page: int) -> None:
        before, after = self._previous[page], self._next[page]
        self._next[before], self._previous[after] = after, before
        self._is_free[page] = 0
        self.free_pages -= 1
