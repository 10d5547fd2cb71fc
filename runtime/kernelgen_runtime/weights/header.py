"""Owns the safetensors header: a hostile file is refused before one byte of data is believed."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..artifact.bounded_json import Json, JsonTextError, parse_json
from ..errors import WeightsError, listing, shown

MAX_HEADER_BYTES = 32 << 20
MAX_TENSORS = 1 << 20
MAX_NAME = 512
DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: bytes [start, end) of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """Return the tensors of the safetensors file at `path`. Raises WeightsError."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            text = _header_text(file, size, path)
    except OSError as error:
        raise WeightsError(f"{path}: cannot read it ({error.strerror})") from None
    try:
        values = parse_json(text)
    except JsonTextError as error:
        raise WeightsError(f"{path}: header: {error}") from None
    if not isinstance(values, dict) or len(values) > MAX_TENSORS:
        raise WeightsError(f"{path}: header must be an object of at most {MAX_TENSORS} tensors")
    problems: list[str] = []
    base = 8 + len(text)
    entries = _entries(values, base, size, problems)
    if not problems:
        _check_cover(entries, base, size, problems)
    if problems:
        raise WeightsError(listing(f"{path}: header lies about its tensors", problems))
    return {entry.name: entry for entry in entries}


def _header_text(file: BinaryIO, size: int, path: Path) -> bytes:
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8:
        raise WeightsError(f"{path}: {size} bytes are too few for a safetensors file")
    if length > min(size - 8, MAX_HEADER_BYTES):
        limit = min(size - 8, MAX_HEADER_BYTES)
        raise WeightsError(f"{path}: header claims {length} bytes, at most {limit} are possible")
    text = file.read(length)
    if len(text) != length:
        raise WeightsError(f"{path}: changed while it was read")
    return text


def _entries(values: dict[str, Json], base: int, size: int, problems: list[str]) -> list[Entry]:
    entries = []
    for name, value in values.items():
        if name == "__metadata__":
            continue
        before = len(problems)
        entry = _entry(name, value, base, problems)
        if entry is not None and entry.end > size:
            problems.append(
                f"{shown(name)}: ends at byte {entry.end}, the file has {size} (truncated?)"
            )
        if entry is not None and len(problems) == before:
            entries.append(entry)
    return entries


def _entry(name: str, value: Json, base: int, problems: list[str]) -> Entry | None:
    def wrong(message: str) -> None:
        problems.append(f"{shown(name)}: {message}")

    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        wrong(f"a name must be 1 to {MAX_NAME} printable characters")
        return None
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        wrong("must be an object of dtype, shape and data_offsets")
        return None
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        wrong(f"dtype {shown(dtype)} is not known")
        return None
    sizes, span = _naturals(shape), _naturals(offsets)
    if sizes is None or len(sizes) > 16 or span is None or len(span) != 2:
        wrong("shape and data_offsets must be lists of whole numbers below 2^48")
        return None
    wanted = math.prod(sizes) * DTYPE_BYTES[dtype]
    if span[1] - span[0] != wanted:
        wrong(f"{dtype} {list(sizes)} takes {wanted} bytes, data_offsets give {span[1] - span[0]}")
        return None
    return Entry(name, dtype, sizes, base + span[0], base + span[1])


def _naturals(value: Json) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    good = tuple(
        i for i in value if isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**48
    )
    return good if len(good) == len(value) else None


def _check_cover(entries: list[Entry], base: int, size: int, problems: list[str]) -> None:
    """Tensors must lie side by side and fill the file: no overlap, no hidden bytes."""
    position, last = base, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.start < position:
            problems.append(f"{shown(entry.name)}: overlaps {last}")
        elif entry.start > position:
            problems.append(f"{shown(entry.name)}: {entry.start - position} bytes unused before it")
        position, last = max(position, entry.end), shown(entry.name)
    if not problems and position != size:
        problems.append(f"{size - position} bytes unused after {last}")
