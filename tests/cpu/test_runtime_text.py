"""Text that grows token by token: whole characters only, stop strings wherever they are cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelgen_runtime.errors import TextError
from kernelgen_runtime.text.detokenize import GrowingText
from kernelgen_runtime.text.tokenizer import TextTokenizer


class Bytes:
    """Ids are bytes: every character outside ASCII spreads over several tokens."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


class Words:
    """Like decoders that write a leading space only after another word."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return " ".join(f"w{i}" for i in ids)


def grow(ids: Sequence[int], text: GrowingText, sizes: Sequence[int]) -> list[str]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text.push(ids[at : at + size]))
        at += size
    return [*pieces, text.push(ids[at:]), text.finish()]


@settings(max_examples=150, deadline=None)
@given(
    words=st.text(alphabet="aé€😀b", max_size=30),
    sizes=st.lists(st.integers(0, 4), max_size=20),
)
def test_pieces_are_the_text_and_never_half_a_character(words: str, sizes: list[int]) -> None:
    text = GrowingText(Bytes(), list("é€".encode()))
    pieces = grow(list(words.encode()), text, sizes)
    assert "".join(pieces) == text.text == words
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@settings(max_examples=300, deadline=None)
@given(
    words=st.text(alphabet="abé", max_size=30),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=st.lists(st.integers(0, 3), max_size=40),
    include=st.booleans(),
)
def test_stop_strings_wherever_tokens_cut_them(
    words: str, stops: list[str], sizes: list[int], include: bool
) -> None:
    text = GrowingText(Bytes(), [97], stops, include)
    pieces = grow(list(words.encode()), text, sizes)
    ends = [(at + len(stop), at) for stop in stops if (at := words.find(stop)) >= 0]
    if not ends:
        assert "".join(pieces) == words and text.stopped_by is None
        return
    end, start = min(ends)
    if all(size <= 1 for size in sizes) and sum(sizes) >= len(words.encode()):
        assert text.stopped_by == words[start:end], "byte by byte, the first to end wins"
    assert text.stopped_by in stops
    shown = "".join(pieces)
    assert words.startswith(shown) and text.text == shown
    assert shown.endswith(text.stopped_by) or not include


def test_nothing_after_a_stop_string() -> None:
    text = GrowingText(Bytes(), [], ["STOP"])
    assert text.push(list(b"one STO")) == "one "
    assert text.push(list(b"P two")) == ""
    assert text.push(list(b"three")) == text.finish() == ""
    assert text.text == "one " and text.stopped_by == "STOP"


def test_what_is_held_back_comes_at_the_end() -> None:
    text = GrowingText(Bytes(), [], ["STOP"])
    assert text.push(list(b"one STO")) == "one " and text.finish() == "STO"
    half = GrowingText(Bytes(), [])
    assert half.push(list("é".encode()[:1])) == "" and half.finish() == "\N{REPLACEMENT CHARACTER}"


def test_the_prompt_gives_context_for_leading_spaces() -> None:
    text = GrowingText(Words(), [1, 2])
    assert text.push([3]) == " w3" and text.push([4, 5]) == " w4 w5"


def word_tokenizer(folder: Path) -> Path:
    vocab = {word: i for i, word in enumerate(["<unk>", "<s>", "hello", "world"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.enable_truncation(1)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_tokenizer_file(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(word_tokenizer(tmp_path))
    assert tokenizer.encode("hello world", add_special_tokens=True) == [1, 2, 3]
    assert tokenizer.encode("hello world", add_special_tokens=False) == [2, 3]
    assert tokenizer.decode([1, 2, 3]) == "hello world"
    assert tokenizer.decode([1, 2], skip_special_tokens=False) == "<s> hello"
    assert tokenizer.decode([999_999]) == ""
    with pytest.raises(TextError, match="is not UTF-8 text"):
        tokenizer.encode("a\udcff", add_special_tokens=True)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": 7}', "\0\1", "{" * 10_000])
def test_damaged_tokenizer_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TextError, match=r"tokenizer\.json: not a tokenizer"):
        TextTokenizer(tmp_path)


def test_missing_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="give the prompt as token ids"):
        TextTokenizer(tmp_path)


def test_random_bytes_never_raise() -> None:
    rng = random.Random(0)
    for _ in range(50):
        ids = [rng.randrange(256) for _ in range(40)]
        text = GrowingText(Bytes(), ids[:3], ["zz"])
        pieces = grow(ids[3:], text, [1] * 20)
        assert "".join(pieces) == text.text
