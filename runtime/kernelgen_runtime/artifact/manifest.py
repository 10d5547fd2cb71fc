"""Owns the types of `manifest.json`: what the compiler promises, what the runtime provides."""

import math
import re
from dataclasses import dataclass
from functools import cached_property

PAGE_TOKENS = 16
CPU = "cpu"
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
class Weight:
    """One buffer to bind: made of checkpoint `parts` in `layout`, or a computed `rope` table."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    parts: tuple[Part, ...]
    interleave: int
    rope: Rope | None
    stack: int = 1
    """equal runs of rows, each of which is laid out by itself"""

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows (interleave padding included) and columns of the parts put together."""
        if not self.interleave:
            return sum(part.rows for part in self.parts), self.parts[0].cols
        unit = self.interleave
        return -(-self.parts[0].rows // unit) * unit * len(self.parts), self.parts[0].cols


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same tokens: all of them, or the last `window`."""

    name: str
    window: int | None
    layers: tuple[int, ...]


@dataclass(frozen=True)
class CacheSchema:
    """The paged cache: one pool whose pages serve every group."""

    page_bytes: int
    groups: tuple[CacheGroup, ...]

    def token_bytes(self, group: CacheGroup) -> int:
        """Return the bytes of keys and values that one token of `group` holds in all its layers."""
        places = max(len(g.layers) for g in self.groups)
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


def laid_out_shape(weight: Weight) -> tuple[int, ...]:
    """Return the shape that `weight` must have by its parts and layout."""
    if weight.rope is not None:
        return (weight.rope.positions, 2, len(weight.rope.inv_freq))
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
