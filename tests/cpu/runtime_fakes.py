"""A toy model behind the runtime's boundary: its manifest, a library in NumPy, and its oracle.

The library keeps token ids in the pages it is given and reads them back through the block tables,
so a wrong page, a page freed too early or a wrong position changes the tokens (or fails at once).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernelgen_runtime
import numpy as np
import torch
from kernelgen_runtime.artifact.manifest import Manifest
from kernelgen_runtime.artifact.read import parse_manifests
from kernelgen_runtime.sample.reference import sample

VOCAB = 97
PAGE = 16
LAYER_BYTES = 2 * 4 * PAGE  # two int32 a token: its id and its position
Groups = Sequence[tuple[str, int | None]]
HYBRID: Groups = (("full", None), ("window", 20))


def args_json(groups: Groups, max_tokens: int, max_rows: int, max_pages: int) -> dict[str, Any]:
    """The `args` part of a manifest, fields in the order of docs/abi.md with gaps between."""
    shapes: list[tuple[str, list[int], str]] = [
        ("counts", [4], "int32"),
        ("token_ids", [max_tokens], "int32"),
        ("row_slot", [max_rows], "int32"),
        ("row_query_start", [max_rows + 1], "int32"),
        ("row_seq_len", [max_rows], "int32"),
        *((f"block_table.{name}", [max_rows, max_pages], "int32") for name, _ in groups),
        ("logit_token", [max_rows], "int32"),
        ("logit_row", [max_rows], "int32"),
        ("temperature", [max_rows], "float32"),
        ("top_p", [max_rows], "float32"),
        ("top_k", [max_rows], "int32"),
        ("seed", [max_rows, 2], "int32"),
    ]
    fields, at = [], 0
    for name, shape, bits in shapes:
        fields.append({"name": name, "offset": at, "shape": shape, "bits": bits})
        at += int(np.prod(shape)) + 3
    sizes = {"max_tokens": max_tokens, "max_rows": max_rows, "max_pages": max_pages}
    return {"words": at, **sizes, "fields": fields}


def manifest_json(
    groups: Groups = HYBRID, max_tokens: int = 64, max_rows: int = 8, max_positions: int = 256
) -> dict[str, Any]:
    """A whole manifest of the toy model; change what a test is about."""
    return {
        "schema": 2,
        "abi": 1,
        "name": "toy",
        "version": "1.0",
        "generator": "kernelgen 0",
        "architecture": "toy",
        "activation_dtype": "float32",
        "model": {"vocab": VOCAB, "max_positions": max_positions, "layers": len(groups)},
        "targets": [_target(groups, max_tokens, max_rows, max_positions)],
        "tensors": [
            {"name": "embed.weight", "shape": [VOCAB, 6], "dtypes": ["F32", "F16", "BF16"]},
            {"name": "norm.weight", "shape": [6], "dtypes": ["F32", "BF16"]},
        ],
        "ignored": [r"lm_head\.weight"],
        "chat": {"eos_token_ids": [VOCAB - 1], "bos_token_id": None},
    }


def _target(groups: Groups, max_tokens: int, max_rows: int, max_positions: int) -> dict[str, Any]:
    pages = -(-max_positions // PAGE)
    return {
        "target": "cpu",
        "device_names": [],
        "libraries": [{"isa": "avx2", "path": "lib/cpu_avx2.so", "measured": True}],
        "weights": [
            _weight("embed", [4, 3, 32, 2], "panel", "embed.weight", VOCAB, 6, "bfloat16"),
            _weight("norm", [6], "rows", "norm.weight", 6, 1, "float32"),
            {
                "name": "rope.0",
                "dtype": "float32",
                "shape": [max_positions, 2, 2],
                "source": {
                    "rope": {"inv_freq": [1.0, 0.01], "scale": 1.0, "positions": max_positions}
                },
            },
        ],
        "cache": {
            "page_tokens": PAGE,
            "page_bytes": LAYER_BYTES,
            "groups": [
                {
                    "name": name,
                    "kind": "full" if window is None else "window",
                    "window": window,
                    "layers": [i],
                }
                for i, (name, window) in enumerate(groups)
            ],
        },
        "args": args_json(groups, max_tokens, max_rows, pages),
        "plans": [
            *(
                _plan(i, "decode", size, size, 64 * size)
                for i, size in enumerate(sorted({1, 2, 4, max_rows}))
            ),
            _plan(10, "mixed", 16, min(16, max_rows), 4096),
            _plan(11, "mixed", max_tokens, max_rows, 8192),
        ],
        "counters": 0,
    }


def _plan(number: int, phase: str, size: int, rows: int, workspace: int) -> dict[str, Any]:
    plan = {"id": number, "phase": phase, "size": size, "logit_rows": rows}
    return plan | {"workspace_bytes": workspace}


def on_gpu(
    values: dict[str, Any], target: str = "sm_90:h200", name: str = "NVIDIA H200"
) -> dict[str, Any]:
    """The manifest `values` for a GPU alone: the same program, as a library of that SM."""
    (only,) = values["targets"]
    isa = target.partition(":")[0]
    library = {"isa": isa, "path": f"lib/cuda_{isa}.so", "measured": True}
    gpu = only | {"target": target, "device_names": [name], "libraries": [library], "counters": 5}
    return values | {"targets": [gpu]}


def target_json(values: dict[str, Any]) -> dict[str, Any]:
    """The first target of a manifest."""
    target: dict[str, Any] = values["targets"][0]
    return target


def _weight(
    name: str, shape: list[int], layout: str, tensor: str, rows: int, cols: int, dtype: str
) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": dtype,
        "shape": shape,
        "layout": layout,
        "parts": [{"tensor": tensor, "rows": rows, "cols": cols}],
        "interleave": 0,
        "source": "checkpoint",
    }


def manifest_of(values: dict[str, Any]) -> Manifest:
    """Parse a manifest that must be right; its first target."""
    problems: list[str] = []
    manifests = parse_manifests(values, problems)
    assert not problems, problems
    return manifests[0]


def toy_logits(contexts: Sequence[Sequence[int]]) -> np.ndarray:
    """Logits [VOCAB] after a token, from the tokens that each group lets it see."""
    state = 17
    for context in contexts:
        for token in context:
            state = (state * 31 + token + 7) % 1_000_003
        state = (state * 131 + 5) % 1_000_003
    return ((np.arange(VOCAB) * 37 + 11) * (state % 99_991 + 1) % 1009 / 50).astype(np.float32)


def seen(tokens: Sequence[int], groups: Groups) -> list[Sequence[int]]:
    """What each group's layers see after the last of `tokens`."""
    return [tokens if window is None else tokens[-window:] for _, window in groups]


def oracle(
    prompt: Sequence[int],
    length_limit: int,
    groups: Groups = HYBRID,
    stop_ids: frozenset[int] = frozenset(),
    **sampling: Any,
) -> list[int]:
    """The ids after `prompt`, one at a time, from whole sequences and without any cache."""
    tokens = list(prompt)
    while len(tokens) < length_limit:
        tokens.append(sample(toy_logits(seen(tokens, groups)), len(tokens), **sampling))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


@dataclass
class FakeLibrary:
    """`StepLibrary` in NumPy; reads `args` by the manifest alone and checks all it is promised.

    `damaged` is a token after which every logit is NaN. `unread` counts logit rows that were left
    unwritten because nobody reads them.
    """

    manifest: dict[str, Any]
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    threads: int = 0
    steps: list[tuple[str, int, int, int]] = field(default_factory=list)
    damaged: int = -1
    unread: int = 0

    @property
    def values(self) -> dict[str, Any]:
        """The target that the library stands for."""
        return target_json(self.manifest)

    def load(self, plan_id: int) -> None:
        pass

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous() and tensor.data_ptr() % 4 == 0
        if name in ("cache", "workspace"):
            assert tensor.dtype is torch.uint8 and tensor.data_ptr() % 64 == 0, name
        self.buffers[name] = tensor

    def set_threads(self, count: int) -> None:
        self.threads = count

    def read_bandwidth(self, seconds: float) -> float | None:
        return 10.0

    def step(self, plan_id: int, args: torch.Tensor) -> None:
        words = args.numpy()
        plan = next(plan for plan in self.values["plans"] if plan["id"] == plan_id)
        read = {f["name"]: _field(words, f) for f in self.values["args"]["fields"]}
        tokens, rows, asked, unread = read["counts"].tolist()
        self.steps.append((plan["phase"], plan["size"], tokens, rows))
        assert unread in (0, 1) and 0 < tokens <= plan["size"] and 0 < rows <= plan["size"]
        assert plan["workspace_bytes"] <= len(self.buffers["workspace"])
        self._check_padding(read, plan, tokens, rows)
        positions = list(self._write_tokens(read, rows))
        assert len(positions) == tokens
        for i in range(asked):
            self._answer(read, i, *positions[read["logit_token"][i]])

    def _check_padding(self, read: dict[str, Any], plan: Any, tokens: int, rows: int) -> None:
        starts = read["row_query_start"]
        assert starts[0] == 0 and starts[rows] == tokens
        if plan["phase"] == "decode":
            assert (np.diff(starts[: rows + 1]) == 1).all(), "decode rows hold one token each"
        stop = min(plan["size"], self.values["args"]["max_rows"])
        assert (read["row_slot"][rows:stop] == -1).all(), "padding rows have slot -1"
        assert (read["row_seq_len"][rows:stop] == 0).all(), "padding rows have length 0"
        assert (starts[rows : stop + 1] == tokens).all(), "padding rows hold no tokens"

    def _write_tokens(self, read: dict[str, Any], rows: int) -> Iterator[tuple[int, int]]:
        """Store every new token in its page of each group; yield (row, position) a token row."""
        slots = read["row_slot"][:rows].tolist()
        assert len(set(slots)) == rows and min(slots) >= 0, "a slot appears once"
        for row, slot in enumerate(slots):
            start, stop = read["row_query_start"][row : row + 2].tolist()
            old = int(read["row_seq_len"][row]) - (stop - start)
            assert start < stop and old >= 0
            for t in range(start, stop):
                token = int(read["token_ids"][t])
                if token == -1:
                    token = int(self.buffers["last_sampled"][slot])
                assert 0 <= token < VOCAB
                position = old + t - start
                for group in self.values["cache"]["groups"]:
                    cell = self._cell(read, group, row, position)
                    cell[:] = token, position
                yield row, position

    def _cell(self, read: dict[str, Any], group: Any, row: int, position: int) -> np.ndarray:
        page = int(read[f"block_table.{group['name']}"][row, position // PAGE])
        cache = self.buffers["cache"]
        assert 0 < page < len(cache), f"position {position} of {group['name']} has page {page}"
        return cache[page].numpy().view(np.int32).reshape(PAGE, 2)[position % PAGE]

    def _context(self, read: dict[str, Any], group: Any, row: int, position: int) -> list[int]:
        first = 0 if group["window"] is None else max(0, position - group["window"] + 1)
        found = [self._cell(read, group, row, p).tolist() for p in range(first, position + 1)]
        places = [place for _, place in found]
        assert places == list(range(first, position + 1)), "a page was taken while it was read"
        return [token for token, _ in found]

    def _answer(self, read: dict[str, Any], i: int, row: int, position: int) -> None:
        contexts = [self._context(read, g, row, position) for g in self.values["cache"]["groups"]]
        logits = toy_logits(contexts)
        if any(self.damaged in context for context in contexts):
            logits[:] = np.nan
        target = int(read["logit_row"][i])
        spared = read["counts"][3] and target >= 0 and read["temperature"][row] == 0
        self.unread += int(spared)
        assert i < len(self.buffers["logits"])
        self.buffers["logits"][i] = float("nan") if spared else torch.from_numpy(logits)
        if target < 0:
            self.buffers["sampled"][i] = -1
            return
        assert target == row
        chosen = sample(
            logits,
            position + 1,
            temperature=float(read["temperature"][row]),
            top_k=int(read["top_k"][row]),
            top_p=float(read["top_p"][row]),
            seed=int(read["seed"][row].copy().view(np.int64)[0]),
        )
        self.buffers["sampled"][i] = chosen
        self.buffers["last_sampled"][int(read["row_slot"][row])] = max(chosen, 0)


def _field(words: np.ndarray, field: dict[str, Any]) -> np.ndarray:
    count = int(np.prod(field["shape"]))
    view = words[field["offset"] : field["offset"] + count].reshape(field["shape"])
    return view.view(np.float32) if field["bits"] == "float32" else view


# Of this program alone: ru_maxrss starts at what the parent had when it made the child.
PEAK_BYTES = """
def peak():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""


def environment() -> dict[str, str]:
    """Environment of a child process that imports this tree's runtime."""
    assert kernelgen_runtime.__file__ is not None
    folder = Path(kernelgen_runtime.__file__).parents[1]
    return os.environ | {"PYTHONPATH": str(folder), "OMP_WAIT_POLICY": "PASSIVE"}
