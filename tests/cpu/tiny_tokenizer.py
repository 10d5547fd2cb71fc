"""A checkpoint folder with nothing but a tokenizer of bytes, special tokens and a template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelgen_runtime.text.tokenizer import TextTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = "<|im_end|>"


def write_tokenizer(
    folder: Path, special: Sequence[str] = (END, "<|im_start|>"), plain: Sequence[str] = ()
) -> Path:
    """256 bytes first, then the special tokens, then the plain added ones."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in special])
    made.add_tokens([AddedToken(text, special=False) for text in plain])
    made.save(str(folder / "tokenizer.json"))
    return folder


def write_chat(folder: Path, template: Any, **tokenizer: Any) -> Path:
    """The same with a chat template."""
    write_tokenizer(folder, **tokenizer)
    config = {"chat_template": template, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def tokenizer_of(folder: Path) -> TextTokenizer:
    return TextTokenizer(folder)
