"""Owns the pool of pages: who may have them, in which order free ones are used, exact accounts."""

from array import array
from collections.abc import Iterable

from .content import Content

NULL_PAGE = 0


class PagePool:
    """Pages 1 … `pages` - 1 to hand out; page 0 is the null page and never leaves.

    A page may have several holders (requests with a common prefix). One that nobody holds is free:
    its content may still be found (`share`) until it is handed out again. The free list is doubly
    linked through two integer arrays: taking from the front, returning to either end and leaving
    from the middle are all O(1).
    """

    def __init__(self, pages: int) -> None:
        assert pages >= 1, "a pool holds the null page at least"
        # Position 0 is the list's own head; it can be, because page 0 is never free.
        self._next = array("q", [*range(1, pages), 0])
        self._previous = array("q", [pages - 1, *range(pages - 1)])
        self._holders = array("q", bytes(8 * pages))
        self.pages = pages
        self.free_pages = pages - 1
        self.content = Content()

    def take(self, count: int) -> list[int] | None:
        """Hand out `count` pages, or None (and nothing changes) where fewer are free.

        What they held is forgotten: never used pages and those without content go first, then the
        least recently used.
        """
        if count > self.free_pages:
            return None
        taken = []
        for _ in range(count):
            page = self._next[NULL_PAGE]
            self._unlink(page)
            self._holders[page] = 1
            self.content.forget(page)
            taken.append(page)
        return taken

    def share(self, page: int) -> None:
        """Give a page whose content was found one holder more."""
        assert 0 < page < self.pages, f"page {page} is none of ours"
        if not self._holders[page]:
            self._unlink(page)
        self._holders[page] += 1

    def is_free(self, page: int) -> bool:
        """Whether nobody holds `page`."""
        return not self._holders[page]

    def give_back(self, pages: Iterable[int]) -> None:
        """Return `pages`, each from one holder; the first of them will be used again first.

        Pages whose content nobody will look up go to the front of the list: they are warm in the
        processor's caches and already resident. Those with wanted content go to the back, so that
        they are overwritten last.
        """
        front = NULL_PAGE
        for page in pages:
            assert 0 < page < self.pages and self._holders[page], f"page {page} is not in use"
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if self.content.is_wanted(page):
                self._link(page, self._previous[NULL_PAGE])
            else:
                self.content.forget(page)
                self._link(page, front)
                front = page

    def _link(self, page: int, after: int) -> None:
        before = self._next[after]
        self._next[after], self._previous[page] = page, after
        self._next[page], self._previous[before] = before, page
        self.free_pages += 1

    def _unlink(self, page: int) -> None:
        before, after = self._previous[page], self._next[page]
        self._next[before], self._previous[after] = after, before
        self.free_pages -= 1
