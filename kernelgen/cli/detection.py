"""Owns reading texts as token ids, and the watermark's key, for the detector."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelgen.core.errors import UsageError, quote

KEY_VARIABLE = "KERNELGEN_WATERMARK_KEY"
MAX_BYTES = 256 << 20


def read_key(file: Path | None) -> int:
    """The key in `file`, or in the environment: decimal, or hexadecimal with 0x.

    It is neither an option, which other users of a machine can see, nor part of any message.
    """
    text = os.environ.get(KEY_VARIABLE, "") if file is None else _read(file)
    where = KEY_VARIABLE if file is None else str(file)
    try:
        return int(text.strip(), 0)
    except ValueError:
        what = "holds no whole number" if text.strip() else "holds no key"
        raise UsageError(what, where=where, allowed="0 to 2**64 - 1") from None


def read_texts(file: Path | None, tokenizer: Path | None) -> Iterator[tuple[str, list[int]]]:
    """Name and token ids of every text of `file`, of standard input where it is None.

    A line is a text: its ids, as a JSON list, as the `token_ids` of a JSON object, or as numbers
    with blanks or commas. With the folder of a `tokenizer` all of the input is one text.
    """
    name = "standard input" if file is None else str(file)
    content = sys.stdin.read(MAX_BYTES) if file is None else _read(file)
    if tokenizer is not None:
        from kernelgen_runtime.text.tokenizer import TextTokenizer

        yield name, TextTokenizer(tokenizer).encode(content, add_special_tokens=False)
        return
    lines = [(i, line) for i, line in enumerate(content.splitlines(), 1) if line.strip()]
    if not lines:
        raise UsageError("holds no text", where=name)
    for number, line in lines:
        where = f"{name}, line {number}"
        yield where, _ids(line, where)


def _read(file: Path) -> str:
    if file.stat().st_size > MAX_BYTES:
        raise UsageError(f"is larger than {MAX_BYTES >> 20} MiB", where=str(file))
    return file.read_text(encoding="utf-8", errors="strict")


def _ids(line: str, where: str) -> list[int]:
    try:
        if line.lstrip().startswith(("[", "{")):
            data: Any = json.loads(line)
            found = data.get("token_ids") if isinstance(data, dict) else data
        else:
            found = [int(word) for word in line.replace(",", " ").split()]
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(type(i) is int and 0 <= i < 1 << 31 for i in found):
        raise UsageError(
            f"{quote(line.strip())} is no list of token ids",
            where=where,
            hint="give --tokenizer DIR for plain text",
        )
    return found
