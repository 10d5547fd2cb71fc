"""Owns text of answers in which the markers of a format stay, be they special tokens or not."""

from collections.abc import Iterable, Sequence

from ..text.detokenize import Decoder
from ..text.tokenizer import TextTokenizer


class MarkerDecoder:
    """Decodes as the tokenizer does, except that special tokens of markers are text."""

    def __init__(self, tokenizer: TextTokenizer, dropped: Iterable[int]) -> None:
        self._tokenizer, self._dropped = tokenizer, frozenset(dropped)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; without skipping, all special tokens are in it."""
        if skip_special_tokens:
            ids = [token for token in ids if token not in self._dropped]
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def decoder_for(tokenizer: TextTokenizer, markers: Iterable[str]) -> Decoder:
    """Return what decodes answers whose format has `markers`."""
    special = tokenizer.special_tokens()
    wanted = [marker for marker in markers if marker]
    kept = {i for i, text in special.items() if any(text in marker for marker in wanted)}
    return MarkerDecoder(tokenizer, special.keys() - kept) if kept else tokenizer
