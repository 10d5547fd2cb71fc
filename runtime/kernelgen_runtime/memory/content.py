"""Owns which page holds which finished tokens, by digest."""


class Content:
    """Pages by what they hold, and back: the tokens up to the page's end, of one cache group.

    Several pages may hold the same: requests that ran beside each other computed it; all are kept.
    A page is `wanted` where it should outlive its last holder.
    """

    def __init__(self) -> None:
        # No tuples and lists where there is one page, the usual case: what the collector walks
        # over is paid for in every step.
        self._pages: dict[bytes, int] = {}
        self._more: dict[bytes, list[int]] = {}
        self._keys: dict[int, bytes] = {}
        self._wanted: set[int] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, group: int, digest: bytes, page: int, wanted: bool) -> None:
        """Note that `page` holds, for layers of `group`, the tokens that `digest` stands for."""
        key = _key(group, digest)
        held = self._keys.setdefault(page, key)
        assert held == key, f"page {page} holds something else"
        if self._pages.setdefault(key, page) != page:
            more = self._more.setdefault(key, [])
            if page not in more:
                more.append(page)
        if wanted:
            self._wanted.add(page)

    def find(self, group: int, digest: bytes) -> int | None:
        """Return a page that holds those tokens, None where there is none."""
        return self._pages.get(_key(group, digest))

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
        more = self._more.get(key)
        if self._pages[key] != page:
            assert more is not None
            more.remove(page)
        elif more:
            self._pages[key] = more.pop(0)
        else:
            del self._pages[key]
        if more == []:
            del self._more[key]

    def doubt(self, group: int, digest: bytes) -> None:
        """Forget every page that holds those tokens."""
        while (page := self.find(group, digest)) is not None:
            self.forget(page)

    def clear(self) -> None:
        """Forget all pages: weights have changed."""
        self._pages.clear()
        self._more.clear()
        self._keys.clear()
        self._wanted.clear()


def _key(group: int, digest: bytes) -> bytes:
    return digest + group.to_bytes(2, "little")
