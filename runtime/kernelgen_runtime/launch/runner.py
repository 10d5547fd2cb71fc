"""Owns what the runtime asks of whatever runs steps, and the buffers that every one binds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..artifact.manifest import Manifest, Plan, RulesSchema
from ..buffers import Arena, byte_size, rounded
from ..device.device import Device
from .args import ArgsWriter
from .details import Answer

Logits = npt.NDArray[np.float32]
Waiter = Callable[[], Answer]


@dataclass(frozen=True)
class Guidance:
    """What grammars let through: `bits` int32 [rows, words] for the slots `slots` [rows]."""

    slots: npt.NDArray[np.int64]
    bits: npt.NDArray[np.int32]


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

    def begin(self, plan: Plan) -> None:
        """Run a step on them as far as its logits; `follow` comes before anything else."""

    def follow(self, plan: Plan, asked: int, guidance: Guidance | None = None) -> Waiter:
        """Let the step that has begun choose; the rest is as `start` has it."""

    def logits(self, count: int) -> Logits:
        """Wait for all steps; return the first `count` rows of logits, valid until the next."""


def allowed_words(rules: RulesSchema | None) -> slice:
    """Return where a slot of `rules` has the bits of a grammar; nowhere if it has none."""
    fields = () if rules is None else rules.fields
    found = [field for field in fields if field.name == "allowed"]
    return slice(found[0].offset, found[0].offset + found[0].shape[0]) if found else slice(0, 0)


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
