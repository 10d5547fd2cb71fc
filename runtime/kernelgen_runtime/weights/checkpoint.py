"""Owns one checkpoint folder: which files hold which tensor, and reading rows of a tensor."""

import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch

from ..artifact.bounded_json import read_json
from ..errors import UnsupportedWeightsError, WeightsError, listing, shown
from .header import DTYPE_BYTES, Entry, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_INDEX_BYTES = 64 << 20
TORCH_DTYPES = {
    "BOOL": torch.uint8,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.uint8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
}


class TensorSource(Protocol):
    """Anything weights can be taken from: names with dtype and shape, and rows on request."""

    @property
    def entries(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Dtype (safetensors spelling) and shape of every tensor."""

    def rows(self, name: str, first: int, count: int, cols: int) -> torch.Tensor:
        """Return rows [first, first + count) of tensor `name` seen as a matrix of `cols` columns.

        The result [count, cols] has the stored dtype and holds until the next call.
        """


class Checkpoint:
    """The safetensors files of one folder, each opened once and read by position."""

    def __init__(self, files: Mapping[Path, Mapping[str, Entry]]) -> None:
        self._entries: dict[str, tuple[int, Entry]] = {}
        self._buffer = bytearray()
        descriptors: list[int] = []
        weakref.finalize(self, _close, descriptors)
        for path, entries in files.items():
            descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            for name, entry in entries.items():
                if name in self._entries:
                    raise WeightsError(f"{path}: {shown(name)} is in another shard too")
                self._entries[name] = (descriptors[-1], entry)
        self.entries = {name: (e.dtype, e.shape) for name, (_, e) in self._entries.items()}

    def rows(self, name: str, first: int, count: int, cols: int) -> torch.Tensor:
        """Return rows of a tensor; see `TensorSource`. Raises WeightsError if the file shrank."""
        dtype = self._entries[name][1].dtype
        size = count * cols * DTYPE_BYTES[dtype]
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        self.read_into(view, name, first, cols)
        return torch.frombuffer(view, dtype=TORCH_DTYPES[dtype]).view(count, cols)

    def read_into(self, view: memoryview, name: str, first: int, cols: int) -> None:
        """Fill `view` (bytes) with rows from `first` on; any number of threads may do so at once.

        Raises WeightsError if the file shrank.
        """
        descriptor, entry = self._entries[name]
        position = entry.start + first * cols * DTYPE_BYTES[entry.dtype]
        assert position + len(view) <= entry.end, "the caller asks for rows the tensor has"
        done = 0
        while done < len(view):
            got = os.preadv(descriptor, [view[done:]], position + done)
            if got == 0:
                raise WeightsError(f"{shown(name)}: its file was shortened while it was read")
            done += got


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Open the checkpoint in `folder` (or one `.safetensors` file). Raises WeightsError."""
    folder = Path(folder)
    if folder.is_file() and folder.suffix == ".safetensors":
        return Checkpoint({folder: read_header(folder)})
    if not folder.is_dir():
        raise WeightsError(f"{folder}: no such checkpoint folder")
    if (folder / INDEX).is_file():
        return Checkpoint(dict(_indexed(folder)))
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if (folder / SINGLE) in found:
        found = [folder / SINGLE]
    if len(found) == 1:
        return Checkpoint({found[0]: read_header(found[0])})
    if found:
        raise WeightsError(f"{folder}: {len(found)} .safetensors files and no {INDEX}")
    pickled = next((p for s in ("*.bin", "*.pt", "*.pth") for p in folder.glob(s)), None)
    if pickled is not None:
        raise UnsupportedWeightsError(
            f"{pickled}: pickled weights are never read; save the model as safetensors"
        )
    raise WeightsError(f"{folder}: holds no .safetensors file")


def _indexed(folder: Path) -> Iterator[tuple[Path, Mapping[str, Entry]]]:
    """Yield each shard that the index names, checked against the index."""
    path = folder / INDEX
    weight_map = read_json(path, MAX_INDEX_BYTES, WeightsError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path}: weight_map must be an object that names tensors")
    shards: dict[str, list[str]] = {}
    problems: list[str] = []
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_file_name(shard):
            problems.append(f"{shown(name)}: {shown(shard)} is not a file name in this folder")
        else:
            shards.setdefault(shard, []).append(name)
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    problems += [f"{shown(shard)}: the file is missing" for shard in missing]
    if problems:
        raise WeightsError(listing(str(path), problems))
    for shard, names in sorted(shards.items()):
        entries = read_header(folder / shard)
        absent = [f"{shown(name)} is not in it" for name in names if name not in entries]
        if absent:
            raise WeightsError(listing(f"{folder / shard}: {INDEX} says otherwise", absent))
        yield folder / shard, entries


def _is_plain_file_name(text: str) -> bool:
    return text.endswith(".safetensors") and text.isprintable() and not set(text) & set("/\\:")


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
