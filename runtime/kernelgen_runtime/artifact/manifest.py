"""Owns the types of `manifest.json`: what the compiler promises, what the runtime provides."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

PAGE_TOKENS = 16
CPU = "cpu"
EXPERT = "{expert}"
"""in the name of a tensor: the number of the matrix in its stack"""
_GPU_TARGET = re.compile(r"sm_([1-9][0-9]{1,3}):[a-z0-9_.\-]{1,64}")


@dataclass(frozen=True)
class Library:
    """One compiled library of the artifact; `path` is relative to the manifest."""

    isa: str
    path: str
    measured: bool


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that the checkpoint must hold."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class Part:
    """`rows` x `cols` of a checkpoint tensor: all of it, or `take` = (first, count, period)."""

    tensor: str
    rows: int
    cols: int
    take: tuple[int, int, int] | None = None
    """of each `period` rows `count` from `first` on"""


@dataclass(frozen=True)
class Rope:
    """Rotary table to compute: cos and sin of position x inv_freq, times scale."""

    inv_freq: tuple[float, ...]
    scale: float
    positions: int


@dataclass(frozen=True)
class Packing:
    """How the checkpoint stores a packed matrix; the words are those of docs/abi.md."""

    arrangement: str
    transposed: bool
    zero_bias: int
    factor_divides: bool


@dataclass(frozen=True)
class Packed:
    """A quantised matrix of `rows` x `cols`: format, and tensors by part.

    `packing` None: one plain tensor, `weight`, that is quantised here. `scale_rows` and `group` 0:
    one scale for all rows, for a whole row. `stack`: so many of them, each by itself, whose rows
    lie one after the other in the tensors, or where `take` (see `Part`) says. `each`: every matrix
    of the stack has tensors of its own, whose names hold `{expert}`.
    """

    format: str
    rows: int
    cols: int
    code: str
    scale: str
    scale_rows: int
    group: int
    zero: bool
    factor: bool
    packing: Packing | None
    tensors: Mapping[str, str]
    stack: int = 1
    take: tuple[int, int, int] | None = None
    each: bool = False

    @property
    def alone(self) -> tuple["Packed", ...]:
        """The matrices of a stack that have tensors of their own; else all of it."""
        if not self.each:
            return (self,)
        return tuple(
            replace(
                self,
                stack=1,
                each=False,
                tensors={p: t.replace(EXPERT, str(e)) for p, t in self.tensors.items()},
            )
            for e in range(self.stack)
        )

    @property
    def bits(self) -> int:
        """Bits of a code in the checkpoint."""
        return {"e2m1": 4, "e4m3": 8}.get(self.code) or int(self.code.removeprefix("int"))

    @property
    def stored_bits(self) -> int:
        """Bits of a code on the device."""
        return 4 if self.bits <= 4 else 8

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return -(-self.cols // self.group) if self.group else 1

    @property
    def padded(self) -> int:
        """Columns filled up to whole groups, or to whole 32-bit words."""
        unit = self.group or 32 // self.stored_bits
        return -(-self.cols // unit) * unit

    @property
    def scale_shape(self) -> tuple[int, int]:
        """Rows and columns of the scales."""
        return (-(-self.rows // self.scale_rows) if self.scale_rows else 1), self.groups


@dataclass(frozen=True)
class Weight:
    """One buffer to bind: made of checkpoint `parts` in `layout`, a computed `rope` table, a
    `packed` matrix, or `scalars`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    parts: tuple[Part, ...]
    interleave: int
    rope: Rope | None
    packed: Packed | None = None
    stack: int = 1
    """equal runs of rows, each of which is laid out by itself"""
    scalars: tuple[tuple[str, ...], ...] = ()
    """each the first of these tensors that the checkpoint has (one positive number), or 1"""

    @cached_property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows (interleave padding included) and columns of the parts put together."""
        if not self.interleave:
            return sum(part.rows for part in self.parts), self.parts[0].cols
        unit = self.interleave
        return -(-self.parts[0].rows // unit) * unit * len(self.parts), self.parts[0].cols


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same tokens: all of them, or the last `window`.

    `per_request`: layers that keep a state of each request. It is found again as what a window of
    `STATE_WINDOW` tokens keeps: the page of the newest token, and the full one before it.
    """

    name: str
    window: int | None
    layers: tuple[int, ...]
    per_request: bool = False


STATE_WINDOW = PAGE_TOKENS + 1


@dataclass(frozen=True)
class CacheSchema:
    """The paged cache: one pool whose pages serve every group that keeps tokens, and one of pages
    of `state_bytes` for states (0: there are none)."""

    page_bytes: int
    groups: tuple[CacheGroup, ...]
    state_bytes: int = 0

    def token_bytes(self, group: CacheGroup) -> int:
        """Return the bytes of keys and values that one token of `group` holds in all its layers."""
        places = max(len(g.layers) for g in self.groups if not g.per_request)
        return self.page_bytes // places // PAGE_TOKENS * len(group.layers)


@dataclass(frozen=True)
class ArgsField:
    """One field of the int32 `args` tensor; `offset` in words."""

    name: str
    offset: int
    shape: tuple[int, ...]
    bits: str


@dataclass(frozen=True)
class ArgsSchema:
    """Layout and capacities of the `args` tensor."""

    words: int
    max_tokens: int
    max_rows: int
    max_pages: int
    fields: tuple[ArgsField, ...]


@dataclass(frozen=True)
class RulesSchema:
    """Layout of a slot of `rules`, and words of a row of `logprobs` and of `masks`."""

    words: int
    logprob_words: int
    mask_words: int
    fields: tuple[ArgsField, ...]


@dataclass(frozen=True)
class Plan:
    """One compiled step: `size` requests of one token each (decode) or `size` tokens (mixed).

    `logit_rows` is the most logit rows that one step of it may ask for.
    """

    id: int
    phase: str
    size: int
    logit_rows: int
    workspace_bytes: int


@dataclass(frozen=True)
class Model:
    """What `manifest.json` says of the model, whatever it runs on."""

    name: str
    version: str
    architecture: str
    activation_dtype: str
    vocab: int
    max_positions: int
    tensors: tuple[TensorSpec, ...]
    ignored: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """what the build has read of the checkpoint's config.json, by name"""

    @cached_property
    def ignored_pattern(self) -> re.Pattern[str]:
        """One expression that matches every checkpoint name that carries nothing."""
        return re.compile("|".join(f"(?:{text})" for text in self.ignored) or r"(?!)")


@dataclass(frozen=True)
class Manifest:
    """The model as built for one target: what a run on that target acts on.

    `target` is "cpu" or an SM with the device it was planned for ("sm_90:h200"); `device_names` is
    how the driver spells that device. `counters` int32 words, zero at first, belong to the kernels.
    """

    model: Model
    target: str
    device_names: tuple[str, ...]
    libraries: tuple[Library, ...]
    weights: tuple[Weight, ...]
    cache: CacheSchema
    args: ArgsSchema
    plans: tuple[Plan, ...]
    counters: int
    rules: RulesSchema | None = None
    """None: built without what changes logits, marks choices or tells log-probabilities"""

    @property
    def name(self) -> str:
        """Distribution name of the wheel."""
        return self.model.name

    @property
    def vocab(self) -> int:
        """Token ids are below this."""
        return self.model.vocab

    @property
    def sm(self) -> int:
        """Ten times the compute capability that the target names (90 for 9.0); 0 is the CPU."""
        return target_sm(self.target) or 0

    @property
    def max_sequence_tokens(self) -> int:
        """Longest sequence that positions and block tables can express."""
        return min(self.model.max_positions, self.args.max_pages * PAGE_TOKENS)


def target_sm(target: str) -> int | None:
    """Return the SM of a target, 0 for the CPU, None where it is not one."""
    if target == CPU:
        return 0
    match = _GPU_TARGET.fullmatch(target)
    return int(match.group(1)) if match else None


def panel_shape(rows: int, cols: int, dtype: str) -> tuple[int, ...]:
    """Return the shape of a [rows, cols] matrix in panel layout."""
    panels, pairs = -(-rows // 32), -(-cols // 2)
    return (panels, pairs, 32, 2) if dtype == "bfloat16" else (panels, 2 * pairs, 32)


def packed_parts(packed: Packed) -> dict[str, tuple[int, int]]:
    """Return part → rows and columns in which its tensor is read: that of all matrices of a stack,
    unless each has its own."""
    packing, stack = packed.packing, 1 if packed.each else packed.stack
    n, k = packed.rows, packed.cols
    if packing is None:
        _, count, period = packed.take or (0, n * stack, n * stack)
        return {"weight": (n * stack // count * period, k)}
    if packed.take is not None:
        n = packed.take[2]  # rows of a matrix in the tensor
    words_k, words_n = -(-k * packed.bits // 32), -(-n * packed.bits // 32)
    codes = {
        "nibbles": (n, k // 2),
        "stream": (words_k, n) if packing.transposed else (n, words_k),
        "awq": (k, n // 8),
    }.get(packing.arrangement, (n, k))
    scale = (-(-n // packed.scale_rows) if packed.scale_rows else 1), packed.groups
    zero = (packed.groups, words_n) if packing.transposed else (words_n, packed.groups)
    found = {
        "order": (k, 1),
        "scale": scale[::-1] if packing.transposed else scale,
        "zero": zero,
        "factor": (1, 1),
        "codes": codes,
    }
    return {p: (stack * found[p][0], found[p][1]) for p in found if p in packed.tensors}


SCALE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "e8m0": 1, "e4m3": 1}
_SECTION, _CHUNK = 256, 32


def packed_sections(packed: Packed) -> tuple[int, ...]:
    """Return where codes, scales, zero points and factors start in the rows layout, and the end."""
    rows = packed.rows if packed.scale_rows <= 1 else packed.scale_shape[0]
    sizes = (
        packed.rows * (-(-packed.cols // _CHUNK) * _CHUNK * packed.stored_bits // 8),
        rows * packed.groups * SCALE_BYTES[packed.scale],
        packed.rows * packed.groups * packed.zero,
        packed.rows * 4 * packed.factor,
    )
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // _SECTION) * _SECTION)
    return tuple(starts)


def packed_shape(packed: Packed, layout: str) -> tuple[int, ...]:
    """Return the shape of packed matrices in bytes: all of them, or `[panels, bytes of one]`."""
    if layout == "rows":
        return (packed.stack * packed_sections(packed)[-1],)
    scales = packed.groups * 32 * (SCALE_BYTES[packed.scale] + packed.zero)
    codes = 32 * packed.padded * packed.stored_bits // 8
    return (packed.stack * -(-packed.rows // 32), scales + codes + 32 * 4 * packed.factor)


def laid_out_shape(weight: Weight) -> tuple[int, ...]:
    """Return the shape that `weight` must have by its parts and layout."""
    if weight.packed is not None:
        return packed_shape(weight.packed, weight.layout)
    if weight.rope is not None:
        return (weight.rope.positions, 2, len(weight.rope.inv_freq))
    if weight.scalars:
        return (len(weight.scalars),)
    rows, cols = weight.matrix_shape
    if weight.layout == "panel":
        panels, *rest = panel_shape(rows // weight.stack, cols, weight.dtype)
        return (panels * weight.stack, *rest)
    if len(weight.shape) == 3:
        return (weight.stack, rows // weight.stack, cols)
    return (rows,) if cols == 1 and len(weight.shape) == 1 else (rows, cols)


def elements(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a tensor."""
    return math.prod(shape)
