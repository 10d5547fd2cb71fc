"""Owns which page holds which finished tokens, by digest."""

Key = tuple[int, bytes]


class Content:
    """Pages by (cache group, digest of all tokens up to the page's end), and back.

    Several pages may hold the same tokens: requests that ran beside each other computed them; all
    are kept. A page is `wanted` where it should outlive its last holder.
    """

    def __init__(self) -> None:
        self._pages: dict[Key, list[int]] = {}
        self._keys: dict[int, Key] = {}
        self._wanted: set[int] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, group: int, digest: bytes, page: int, wanted: bool) -> None:
        """Note that `page` holds, for layers of `group`, the tokens that `digest` stands for."""
        key = (group, digest)
        assert self._keys.get(page, key) == key, f"page {page} holds something else"
        if page not in self._keys:
            self._keys[page] = key
            self._pages.setdefault(key, []).append(page)
        if wanted:
            self._wanted.add(page)

    def find(self, group: int, digest: bytes) -> int | None:
        """Return a page that holds those tokens, None where there is none."""
        pages = self._pages.get((group, digest))
        return pages[0] if pages else None

    def want(self, page: int) -> None:
        """Keep `page` beyond its last holder, if anything is known of it."""
        if page in self._keys:
            self._wanted.add(page)

    def is_wanted(self, page: int) -> bool:
        """Whether `page` should outlive its last holder."""
        return page in self._wanted

    def forget(self, page: int) -> None:
        """Note that what `page` holds is nothing to find."""
        key = self._keys.pop(page, None)
        if key is None:
            return
        self._wanted.discard(page)
        pages = self._pages[key]
        pages.remove(page)
        if not pages:
            del self._pages[key]

    def clear(self) -> None:
        """Forget all pages: weights have changed."""
        self._pages.clear()
        self._keys.clear()
        self._wanted.clear()
