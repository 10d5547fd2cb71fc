"""Checkpoints: hostile files are refused by name, layouts equal loops, memory stays bounded."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelgen_runtime.artifact.manifest import Part, Rope, Weight, laid_out_shape
from kernelgen_runtime.errors import UnsupportedWeightsError, WeightsError
from kernelgen_runtime.weights import layout
from kernelgen_runtime.weights.checkpoint import INDEX, open_checkpoint
from kernelgen_runtime.weights.header import read_header
from kernelgen_runtime.weights.load import load_weights
from kernelgen_runtime.weights.random import POOL, RandomTensors
from runtime_fakes import PEAK_BYTES, VOCAB, environment, manifest_json, manifest_of
from safetensors.torch import save_file

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Matrices:
    """A source over plain tensors; hands out rows in a buffer that the next call overwrites."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.entries = {name: ("F32", tuple(t.shape)) for name, t in tensors.items()}
        self._last = torch.zeros(0)

    def rows(self, name: str, first: int, count: int, cols: int) -> torch.Tensor:
        if self._last.is_floating_point():
            self._last.fill_(float("nan"))
        self._last = self.tensors[name].reshape(-1, cols)[first : first + count].clone()
        assert len(self._last) == count
        return self._last


def stacked(weight: Weight, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The matrix of docs/abi.md, row by row."""
    matrices = [tensors[p.tensor].reshape(p.rows, p.cols) for p in weight.parts]
    if not weight.interleave:
        return torch.cat(matrices)
    rows, unit = [], weight.interleave
    for first in range(0, weight.parts[0].rows, unit):
        for matrix in matrices:
            piece = matrix[first : first + unit]
            rows += [*piece, *torch.zeros(unit - len(piece), piece.shape[1], dtype=piece.dtype)]
    return torch.stack(rows)


def panels(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The panel layout of docs/abi.md, element by element."""
    n, k = matrix.shape
    count, pairs = -(-n // 32), -(-k // 2)
    shape = (count, pairs, 32, 2) if dtype is torch.bfloat16 else (count, 2 * pairs, 32)
    out = torch.zeros(shape, dtype=dtype)
    for i in range(n):
        for j in range(k):
            at = (i // 32, j // 2, i % 32, j % 2) if len(shape) == 4 else (i // 32, j, i % 32)
            out[at] = matrix[i, j].to(dtype)
    return out


@pytest.mark.row("B-12")
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["rows", "panel"])
@pytest.mark.parametrize(
    ("rows", "cols", "interleave", "block_rows"),
    [
        ((5,), 3, 0, 32),  # nothing divides
        ((64,), 4, 0, 32),  # everything divides
        ((40, 9, 33), 6, 0, 32),  # parts that start inside a panel
        ((40, 40), 7, 8, 64),  # interleave, odd K
        ((9, 9, 9), 2, 4, 32),  # last turn padded with zero rows
        ((70, 70), 5, 32, 32),  # one turn a block
        ((1, 1), 1, 2, 32),
    ],
)
def test_layouts_equal_loops(
    monkeypatch: pytest.MonkeyPatch,
    stored: torch.dtype,
    dtype: str,
    kind: str,
    rows: tuple[int, ...],
    cols: int,
    interleave: int,
    block_rows: int,
) -> None:
    monkeypatch.setattr(layout, "BLOCK_BYTES", block_rows * 4 * cols)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        str(i): torch.randn(n, cols, generator=generator).to(stored) for i, n in enumerate(rows)
    }
    parts = tuple(Part(str(i), n, cols) for i, n in enumerate(rows))
    weight = Weight("w", dtype, (), kind, parts, interleave, None)
    out = torch.zeros(laid_out_shape(weight), dtype=TORCH[dtype])
    layout.fill(weight, Matrices(tensors), out)
    matrix = stacked(weight, tensors)
    wanted = matrix.to(out.dtype) if kind == "rows" else panels(matrix, out.dtype)
    assert torch.equal(out, wanted)


def test_rounding_is_to_nearest_even() -> None:
    halfway = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20])
    weight = Weight("w", "bfloat16", (3,), "rows", (Part("w", 3, 1),), 0, None)
    out = torch.zeros(3, dtype=torch.bfloat16)
    layout.fill(weight, Matrices({"w": halfway}), out)
    assert out.tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]


def test_rope_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BLOCK_BYTES", 1000)
    inv_freq = tuple(10000 ** (-i / 8) for i in range(8))
    weight = Weight("rope.0", "float32", (300, 2, 8), "rows", (), 0, Rope(inv_freq, 1.25, 300))
    out = torch.zeros(laid_out_shape(weight))
    layout.fill(weight, Matrices({}), out)
    angle = np.arange(300)[:, None] * np.array(inv_freq)
    wanted = np.stack([np.cos(angle), np.sin(angle)], 1) * 1.25
    assert np.array_equal(out.numpy(), wanted.astype(np.float32))


# A file with our own header, so that it can lie.


def raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + text + data)
    return path


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data", "word"),
    [
        ({"a": entry("F32", [2], 0, 8)}, 7, "ends at byte"),
        ({"a": entry("F32", [2], 0, 8)}, 9, "1 bytes unused after"),
        ({"a": entry("F32", [2], 4, 12)}, 12, "4 bytes unused before"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, 8, "overlaps"),
        ({"a": entry("F32", [2], 0, 9)}, 9, "takes 8 bytes, data_offsets give 9"),
        ({"a": entry("F32", [2], 8, 0)}, 8, "data_offsets give -8"),
        ({"a": entry("F32", [2**62, 4], 0, 0)}, 0, "whole numbers below 2^48"),
        ({"a": entry("F32", [2**40, 2**40], 0, 8)}, 8, "takes 48"),
        ({"a": entry("F32", [2**63], 0, 8)}, 8, "whole numbers"),
        ({"a": entry("F32", [-1], 0, 8)}, 8, "whole numbers"),
        ({"a": entry("F32", [True], 0, 4)}, 4, "whole numbers"),
        ({"a": entry("F32", [1.0], 0, 4)}, 4, "whole numbers"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "must be an object of"),
        ({"a": [1]}, 4, "must be an object of"),
        ({"a": {**entry("F32", [1], 0, 4), "x": 1}}, 4, "must be an object of"),
        ({"a": entry("F31", [1], 0, 4)}, 4, "dtype 'F31' is not known"),
        ({"": entry("F32", [1], 0, 4)}, 4, "printable"),
        ({"a\n": entry("F32", [1], 0, 4)}, 4, "printable"),
        ({"a" * 600: entry("F32", [1], 0, 4)}, 4, "printable"),
        (b'{"a": 1, "a": 2}', 0, "appears twice"),
        (b'{"a": NaN}', 0, "NaN"),
        (b'{"a": 1e999}', 0, "out of range"),
        (b"[" * 100_000, 0, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", 0, "not JSON"),
        (b"\xff{}", 0, "not UTF-8"),
        (b"[]", 0, "must be an object"),
        (b"", 0, "not JSON"),
    ],
)
def test_lying_headers_are_named(tmp_path: Path, header: Any, data: int, word: str) -> None:
    path = raw(tmp_path / "model.safetensors", header, b"\0" * data)
    with pytest.raises(WeightsError) as caught:
        read_header(path)
    assert word in str(caught.value) and str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 33 << 20, 100])
def test_header_length_is_bounded(tmp_path: Path, length: int) -> None:
    with pytest.raises(WeightsError, match="header claims"):
        read_header(raw(tmp_path / "m.safetensors", {}, b"", length))


@pytest.mark.parametrize("size", [0, 3, 7])
def test_tiny_files(tmp_path: Path, size: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"\1" * size)
    with pytest.raises(WeightsError, match="too few"):
        read_header(path)


def test_many_problems_are_bounded(tmp_path: Path) -> None:
    header = {f"t{i}": entry("F32", [1], 0, 5) for i in range(5000)}
    with pytest.raises(WeightsError) as caught:
        read_header(raw(tmp_path / "m.safetensors", header))
    assert len(str(caught.value).splitlines()) == 22 and "and 4980 more" in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**65) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["a", "b", "dtype", "shape", "data_offsets", "__metadata__"]), inner
        )
    ),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F64", "X"]) | JSON,
        "shape": st.lists(st.integers(-1, 5) | st.sampled_from([2**31, 2**62]), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40) | st.just(2**63), min_size=2, max_size=2)
        | JSON,
    }
)


@settings(max_examples=400, deadline=None)
@given(
    header=st.dictionaries(st.sampled_from(["a", "b", "c"]), ENTRY) | JSON,
    data=st.binary(max_size=40),
)
def test_fuzzed_headers_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, header: Any, data: bytes
) -> None:
    check_fuzz(raw(tmp_path_factory.mktemp("fuzz") / "m.safetensors", header, data))


@settings(max_examples=300, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6))
def test_flipped_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("flip") / "m.safetensors"
    save_file({"a": torch.ones(3, 4), "b": torch.zeros(5, dtype=torch.bfloat16)}, str(path))
    content = bytearray(path.read_bytes())
    for at, value in flips:
        content[at % len(content)] = value
    path.write_bytes(content)
    check_fuzz(path)


def check_fuzz(path: Path) -> None:
    """Whatever the file holds: entries inside it that do not overlap, or a WeightsError."""
    try:
        entries = read_header(path)
    except WeightsError:
        return
    size, taken = path.stat().st_size, 0
    for one in entries.values():
        assert 8 <= one.start <= one.end <= size
        taken += one.end - one.start
    assert taken <= size
    checkpoint = open_checkpoint(path)
    for name, (_, shape) in checkpoint.entries.items():
        if shape and 0 not in shape:
            checkpoint.rows(name, 0, shape[0], int(np.prod(shape[1:])))


@pytest.mark.row("B-12")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_reads_what_the_library_writes(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "x": torch.arange(60).reshape(5, 4, 3).to(dtype),
        "scalar": torch.tensor(3).to(dtype),
        "none": torch.zeros(0, 4, dtype=dtype),
    }
    save_file(tensors, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    assert {name: shape for name, (_, shape) in checkpoint.entries.items()} == {
        name: tuple(t.shape) for name, t in tensors.items()
    }
    assert torch.equal(checkpoint.rows("x", 1, 3, 12), tensors["x"].reshape(5, 12)[1:4])


def toy_tensors() -> dict[str, torch.Tensor]:
    return {"embed.weight": torch.randn(VOCAB, 6), "norm.weight": torch.ones(6)}


def shards(folder: Path, index: Any = None) -> Path:
    one, two = (dict([item]) for item in toy_tensors().items())
    save_file(one, str(folder / "model-1.safetensors"))
    save_file(two, str(folder / "model-2.safetensors"))
    names = {"embed.weight": "model-1.safetensors", "norm.weight": "model-2.safetensors"}
    index = {"weight_map": names} if index is None else index
    (folder / INDEX).write_text(json.dumps(index))
    return folder


@pytest.mark.row("B-12")
def test_sharded_checkpoint(tmp_path: Path) -> None:
    weights = load_weights(manifest_of(manifest_json()), shards(tmp_path))
    assert set(weights.tensors) == {"embed", "norm", "rope.0"}
    assert all(t.data_ptr() % 64 == 0 and t.is_contiguous() for t in weights.tensors.values())


@pytest.mark.row("B-12")
@pytest.mark.parametrize(
    ("names", "word"),
    [
        ({"embed.weight": "../x.safetensors"}, "is not a file name"),
        ({"embed.weight": "/etc/x.safetensors"}, "is not a file name"),
        ({"embed.weight": "a\\b.safetensors"}, "is not a file name"),
        ({"embed.weight": "model-1.bin"}, "is not a file name"),
        ({"embed.weight": 3}, "is not a file name"),
        ({"embed.weight": "model-9.safetensors"}, "'model-9.safetensors': the file is missing"),
        ({"embed.weight": "model-2.safetensors"}, "'embed.weight' is not in it"),
        ({}, "weight_map"),
        ([], "weight_map"),
    ],
)
def test_wrong_index(tmp_path: Path, names: Any, word: str) -> None:
    with pytest.raises(WeightsError, match=word):
        open_checkpoint(shards(tmp_path, {"weight_map": names}))


def test_one_tensor_in_two_shards(tmp_path: Path) -> None:
    shards(tmp_path)
    save_file(toy_tensors(), str(tmp_path / "model-2.safetensors"))
    with pytest.raises(WeightsError, match="is in another shard too"):
        open_checkpoint(tmp_path)


def test_folders_that_hold_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match=r"holds no \.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedWeightsError, match="never read") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.exit_code == 3
    (tmp_path / "a.safetensors").write_bytes(b"")
    (tmp_path / "b.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"2 \.safetensors files and no"):
        open_checkpoint(tmp_path)


@pytest.mark.row("B-12")
def test_tied_head_may_be_stored_too(tmp_path: Path) -> None:
    tensors = toy_tensors() | {"lm_head.weight": torch.zeros(VOCAB, 6)}
    save_file(tensors, str(tmp_path / "model.safetensors"))
    load_weights(manifest_of(manifest_json()), tmp_path)


def test_every_difference_is_told(tmp_path: Path) -> None:
    tensors = {"norm.weight": torch.ones(7, dtype=torch.float16), "other": torch.ones(1)}
    save_file(tensors, str(tmp_path / "model.safetensors"))
    with pytest.raises(WeightsError) as caught:
        load_weights(manifest_of(manifest_json()), tmp_path)
    text = str(caught.value)
    assert "'embed.weight': missing" in text
    assert "'norm.weight': shape [7], must be [6]" in text
    assert "'norm.weight': dtype F16, must be F32 or BF16" in text
    assert "'other': the model has no such tensor" in text


def test_differences_are_bounded(tmp_path: Path) -> None:
    tensors = {f"extra.{i}": torch.ones(1) for i in range(300)}
    save_file(tensors, str(tmp_path / "model.safetensors"))
    with pytest.raises(WeightsError) as caught:
        load_weights(manifest_of(manifest_json()), tmp_path)
    assert len(str(caught.value).splitlines()) == 22
    assert "and 282 more" in str(caught.value)


def test_random_weights_depend_on_seed_and_name_only() -> None:
    values = manifest_json()
    values["tensors"] += [
        {"name": "m", "shape": [3000, 2000], "dtypes": ["F32"]},
        {"name": "n", "shape": [3000, 2000], "dtypes": ["F32"]},
    ]
    first, again, other = (RandomTensors(manifest_of(values).model, seed) for seed in (1, 1, 2))
    whole = first.rows("m", 0, 3000, 2000)
    assert whole.numel() > POOL and torch.equal(again.rows("m", 2500, 7, 2000), whole[2500:2507])
    assert not torch.equal(other.rows("m", 0, 9, 2000), whole[:9])
    assert not torch.equal(first.rows("n", 0, 9, 2000), whole[:9])
    assert len(whole.unique(dim=0)) == 3000, "no row repeats"
    assert float(whole.std()) == pytest.approx(2000**-0.5, rel=0.02)
    assert float(first.rows("norm.weight", 0, 6, 1).mean()) == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize(
    "text", ["random:", "random:x", "random:-1", "random:1.5", "random:" + "9" * 40]
)
def test_random_seed_is_checked(text: str) -> None:
    with pytest.raises(WeightsError, match="seed"):
        load_weights(manifest_of(manifest_json()), text)


MEMORY_PROBE = (
    PEAK_BYTES
    + """
import sys, torch
from kernelgen_runtime.artifact.manifest import Part, Weight
from kernelgen_runtime.buffers import host_bytes
from kernelgen_runtime.weights.checkpoint import open_checkpoint
from kernelgen_runtime.weights import layout

rows, cols = 65536, 1024
weight = Weight("w", "bfloat16", (), "panel", (Part("w", rows, cols),), 0, None)
before = peak()
out = host_bytes(rows * cols * 2).view(torch.bfloat16).view(rows // 32, cols // 2, 32, 2)
layout.fill(weight, open_checkpoint(sys.argv[1]), out)
print(peak() - before - rows * cols * 2)
"""
)


def test_loading_needs_little_more_than_the_weights(tmp_path: Path) -> None:
    """128 MiB of weights from a float32 file of 256 MiB: at most 64 MiB beside them."""
    file = tmp_path / "model.safetensors"
    rows, cols = 65536, 1024
    with raw(file, {"w": entry("F32", [rows, cols], 0, rows * cols * 4)}).open("ab") as out:
        out.truncate(out.tell() + rows * cols * 4)
    command = [sys.executable, "-c", MEMORY_PROBE, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert int(result.stdout) < 64 << 20
