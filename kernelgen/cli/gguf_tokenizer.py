"""Owns the tokenizer of a GGUF file as `tokenizer.json` and `tokenizer_config.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelgen.core.errors import UnsupportedError, quote
from kernelgen.core.jsonio import dumps_readable

_CONTROL = 3  # token_type of what never stands for text
# What llama.cpp calls the splits before byte-level merges; "smollm" and its like: single digits.
_DIGITS_APART = {"smollm": True, "gpt-2": False}

Field = Callable[[str], Any]


def tokenizer_files(field: Field, path: Path) -> dict[str, str]:
    """Contents of the tokenizer files by name; `field(key)` is a metadata value of the GGUF file.

    `UnsupportedError` for anything but byte-level BPE with a known way of splitting.
    """
    kind, split = field("tokenizer.ggml.model"), field("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _DIGITS_APART:
        raise UnsupportedError(
            f"tokenizer {quote(kind)} with splits {quote(split)} is not read",
            where=str(path),
            allowed=f"gpt2 with {', '.join(_DIGITS_APART)}",
        )
    tokens = list(field("tokenizer.ggml.tokens"))
    types = list(field("tokenizer.ggml.token_type"))
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    merges = [tuple(merge.split(" ", 1)) for merge in field("tokenizer.ggml.merges")]
    model = _byte_level(tokens, merges, special, digits_apart=_DIGITS_APART[split])
    named = {
        f"{name}_token": tokens[field(f"tokenizer.ggml.{key}_token_id")]
        for name, key in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("unk", "unknown"),
            ("pad", "padding"),
        )
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "clean_up_tokenization_spaces": False,
        "chat_template": field("tokenizer.chat_template"),
    }
    return {"tokenizer.json": model, "tokenizer_config.json": dumps_readable(config)}


def _byte_level(
    tokens: list[str], merges: list[Any], special: list[str], *, digits_apart: bool
) -> str:
    """GPT-2's byte-level BPE; `special` tokens are matched whole, before any splitting."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split])
        if digits_apart
        else split
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return str(tokenizer.to_str())
