"""Owns which pages of a window group stay to be found once the window has passed them."""

from dataclasses import dataclass

from ..artifact.manifest import PAGE_TOKENS, CacheGroup


@dataclass(frozen=True)
class Retention:
    """`interval` None keeps every page; 0 those that a repetition of the prompt goes on from;
    N those, and the ones that a request sharing each N tokens of it goes on from.

    Pages that a request still has when it ends stay in any case: they are what the next turn of
    the conversation goes on from. Without windows all pages stay.
    """

    interval: int | None = 0

    def keeps(self, group: CacheGroup, page: int, replayed: int) -> bool:
        """Whether page number `page` of a prompt of `replayed` tokens stays.

        One may go on from the end of a page (a point) that needs `page` if the point lies behind
        it, and the token after the point still reads the last token of `page`.
        """
        if group.window is None or self.interval is None:
            return True
        first, last = page + 1, (PAGE_TOKENS * page + PAGE_TOKENS - 2 + group.window) // PAGE_TOKENS
        # The last token of a prompt is always computed again, for its logits.
        if first <= (replayed - 1) // PAGE_TOKENS <= last:
            return True
        if not self.interval:
            return False
        # The last multiple of the interval whose page ends in the span.
        multiple = (PAGE_TOKENS * last + PAGE_TOKENS - 1) // self.interval * self.interval
        return first <= multiple // PAGE_TOKENS
