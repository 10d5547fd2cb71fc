"""Owns what the runtime asks of whatever runs steps, and the buffers that every one binds."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..artifact.manifest import Manifest, Plan
from ..buffers import Arena, byte_size, rounded
from ..device.device import Device
from .args import ArgsWriter
from .details import Answer

Logits = npt.NDArray[np.float32]
Waiter = Callable[[], Answer]


class Runner(Protocol):
    """Runs steps of one library whose buffers are bound, each on the args written before it.

    `logit_rows` is how many rows of logits are kept.
    """

    logit_rows: int

    def misses_graph(self, plan: Plan) -> bool:
        """Whether a step of `plan` is launched kernel by kernel where graphs are in use."""

    def args(self) -> ArgsWriter:
        """Return the args of the next step, free to be written."""

    def start(self, plan: Plan, asked: int) -> Waiter:
        """Run a step on them; the result waits for the answer to its `asked` logit rows."""

    def logits(self, count: int) -> Logits:
        """Wait for all steps; return the first `count` rows of logits, valid until the next."""


def make_buffers(
    device: Device, manifest: Manifest, workspace_bytes: int, slots: int, logit_rows: int
) -> dict[str, torch.Tensor]:
    """Return what a library has bound beside weights and cache. Raises DeviceMemoryError."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "workspace": ((workspace_bytes,), "uint8"),
        "logits": ((logit_rows, manifest.vocab), "float32"),
        "last_sampled": ((slots,), "int32"),
        "sampled": ((manifest.args.max_rows,), "int32"),
    }
    if manifest.rules is not None:
        rules, rows = manifest.rules, manifest.args.max_rows
        shapes["rules"] = ((slots, rules.words), "int32")
        shapes["logprobs"] = ((rows, rules.logprob_words), "int32")
        shapes["masks"] = ((rows, rules.mask_words), "int32")
    if manifest.counters:
        shapes["counters"] = ((manifest.counters,), "int32")
    total = sum(rounded(byte_size(*of), device.alignment) for of in shapes.values())
    what = f"workspace and {logit_rows} rows of logits"
    arena = Arena(device.allocate(total, what, "lower --max-num-batched-tokens"), device.alignment)
    buffers = {name: arena.take(*of) for name, of in shapes.items()}
    buffers["sampled"].fill_(-1)
    return buffers
