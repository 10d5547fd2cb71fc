"""Owns the tokenizer of a checkpoint folder: `tokenizer.json`, read by the tokenizers library."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import TextError, shown

TOKENIZER = "tokenizer.json"
MAX_TOKENIZER_BYTES = 256 << 20
MAX_PROMPT_CHARACTERS = 16 << 20


class TextTokenizer:
    """Text to ids and back. Raises TextError where the folder has no usable tokenizer."""

    def __init__(self, folder: Path) -> None:
        import tokenizers

        path = folder / TOKENIZER
        if not path.is_file():
            raise TextError(f"{folder}: holds no {TOKENIZER}; give the prompt as token ids")
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise TextError(f"{path}: larger than {MAX_TOKENIZER_BYTES} bytes")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a file it cannot parse
            raise TextError(f"{path}: not a tokenizer ({shown(str(error), 200)})") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`. Raises TextError where it is absurdly long or no Unicode."""
        if len(text) > MAX_PROMPT_CHARACTERS:
            raise TextError(f"prompt of {len(text)} characters, at most {MAX_PROMPT_CHARACTERS}")
        try:
            text.encode()
        except UnicodeEncodeError:  # a lone surrogate: how Python shows bytes of a command line
            raise TextError("prompt: is not UTF-8 text") from None
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def special_tokens(self) -> dict[int, str]:
        """Return id and text of each special token: what `decode` leaves out unless told."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {i: token.content for i, token in added.items() if token.special}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids that the tokenizer does not know give nothing."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text
