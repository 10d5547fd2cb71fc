"""Owns the bundle: candidates, their machine code, and all that a GPU without a compiler needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from kernelgen.core.digest import digest_json
from kernelgen.core.errors import UsageError
from kernelgen.ir.types import Sizes

SCHEMA = 1
ALTERNATIVE = 0.5
"""weight of a kernel that no plan uses yet, beside those that plans use"""

Kind = Literal[
    "operand",
    "args",
    "cache",
    "scratch",
    "counters",
    "logits",
    "sampled",
    "last_sampled",
    "token_ids",
    "positions",
    "rows",
    "layer_offset",
    "block_table",
    "integer",
    "matrix",
]


@dataclass(frozen=True)
class Matrix:
    """What a descriptor says of an operand: its sides, and how blocks of it are copied.

    Element and swizzle in the driver's own numbers; the block is that of one copy.
    """

    rows: int
    columns: int
    element: int
    swizzle: int
    block_rows: int
    block_columns: int


@dataclass(frozen=True)
class Argument:
    """One parameter of a launch. `number`: the operand's place in the signature, or the integer."""

    kind: Kind
    number: int = 0
    matrix: Matrix | None = None


@dataclass(frozen=True)
class Launch:
    """One pass of a candidate: machine code by digest, and how it is launched."""

    code: str
    symbol: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    pdl: bool
    cooperative: bool
    registers: int
    arguments: tuple[Argument, ...]
    cluster: int = 1
    """blocks of a cluster"""


@dataclass(frozen=True)
class Candidate:
    """One tile of one kernel at one size, compiled."""

    choice: Mapping[str, int]
    launches: tuple[Launch, ...]
    scratch_bytes: int
    counters: int
    source: str
    """digest of its generated code: a row keeps it, and other code makes the row stale"""
    modelled_us: float
    why: str
    """what it is in the bundle for: "model's best", "in use", "fast", "diverse" """

    @cached_property
    def id(self) -> str:
        """The tile as text, the same in every bundle."""
        return ",".join(f"{name}={value}" for name, value in sorted(self.choice.items()))


@dataclass(frozen=True)
class Pruned:
    """Tiles that are not measured, counted by the reason."""

    reason: str
    tiles: int
    example: str


@dataclass(frozen=True)
class Extents:
    """What the symbolic sizes are worth: `Sizes` as data."""

    tokens: int
    rows: int
    context: int
    row_capacity: int

    @property
    def sizes(self) -> Sizes:
        """As the planner takes them."""
        return Sizes(self.tokens, self.rows, self.context, self.row_capacity)

    @staticmethod
    def of(sizes: Sizes) -> Extents:
        """The data form."""
        return Extents(sizes.tokens, sizes.rows, sizes.context, sizes.row_capacity)


def group_id(family: str, variant: str, bucket: str, model: str) -> str:
    """`gemv-decode1-0123456789`: short, and the same wherever a bundle is made."""
    text = digest_json([family, variant, bucket, model])
    return f"{family}-{bucket.replace(':', '')}-{text[:10]}"


@dataclass(frozen=True)
class Group:
    """One kernel variant at one size: what is measured against each other."""

    model: str
    """name of the `ModelFacts` that its addresses belong to"""
    kernel: str
    """name in the build, for people"""
    family: str
    variant: str
    bucket: str
    extents: Extents
    graph: Mapping[str, Any]
    """JSON form of the sub-graph that it computes"""
    signature: tuple[str, ...]
    layers: tuple[int, ...]
    """layers whose cache it reads or writes; empty without one"""
    placements: int
    """launches in one step of the plan, or of the alternative that it belongs to"""
    bytes: int
    flops: int
    math: str
    """dtype whose rate bounds its operations"""
    chosen: bool
    """whether the plan uses it; else it belongs to an alternative that might be as fast"""
    planned_us: float
    """what the planner expects of one launch, the boundary before it included"""
    step_us: float
    """what the planner expects of the whole step"""
    before: Mapping[str, int]
    """the choice that a build makes today"""
    before_verdict: str
    candidates: tuple[Candidate, ...]
    looked_at: int
    pruned: tuple[Pruned, ...] = ()
    elsewhere: tuple[int, ...] = ()
    """other contexts that the same plan serves: candidates are ranked by all of them"""
    code: str = ""
    """digest of the generated code of one tile: what was measured of other code is out of date"""

    @cached_property
    def id(self) -> str:
        """As `group_id` has it."""
        return group_id(self.family, self.variant, self.bucket, self.model)

    @property
    def phase(self) -> str:
        """`decode` or `mixed`."""
        return self.bucket.partition(":")[0]

    @property
    def share(self) -> float:
        """Of the predicted step: what is gained first by tuning it."""
        return self.planned_us * self.placements / self.step_us

    @property
    def weight(self) -> float:
        """What groups are put in order by."""
        return self.share * (1 if self.chosen else ALTERNATIVE)

    def rank_us(self, us: float, elsewhere: Sequence[float | None]) -> float:
        """What candidates are compared by: the time at the planned context, and at each other one
        in proportion to what is read there.
        """
        shares = (context / self.extents.context for context in self.elsewhere)
        return us + sum(t / s for t, s in zip(elsewhere, shares, strict=False) if t is not None)


@dataclass(frozen=True)
class CacheGroupFacts:
    """Layers that keep the same tokens."""

    name: str
    window: int | None


@dataclass(frozen=True)
class LayerFacts:
    """Where a layer's keys and values lie."""

    layer: int
    group: int
    offset_bytes: int
    kv_heads: int
    head_dim: int
    dtype: str


@dataclass(frozen=True)
class FieldFacts:
    """A field of the step's arguments."""

    name: str
    offset: int
    shape: tuple[int, ...]
    bits: str


@dataclass(frozen=True)
class TableFacts:
    """A rotary table."""

    name: str
    inv_freq: tuple[float, ...]
    scale: float
    positions: int


@dataclass(frozen=True)
class ModelFacts:
    """What the machine code of a model's kernels has compiled in, besides their variants."""

    name: str
    vocabulary: int
    page_bytes: int
    cache_groups: tuple[CacheGroupFacts, ...]
    layers: tuple[LayerFacts, ...]
    args_words: int
    max_rows: int
    max_pages: int
    fields: tuple[FieldFacts, ...]
    tables: tuple[TableFacts, ...]

    def offset(self, name: str) -> int:
        """Word at which a field of the arguments starts."""
        return next(f.offset for f in self.fields if f.name == name)

    @cached_property
    def layer(self) -> dict[int, LayerFacts]:
        """By number."""
        return {facts.layer: facts for facts in self.layers}


@dataclass(frozen=True)
class WeightFacts:
    """One buffer that a step has bound: a parameter or a table, laid out as rows.

    `stored`: the format of a packed matrix, whose `shape` is then that of the matrix.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: str = ""


@dataclass(frozen=True)
class Given:
    """What a launch of a step is given for one value of its kernel's signature.

    `kind` as the plan's operands have it; `number`: of the weight, or the byte of the workspace.
    """

    kind: Literal["buffer", "bound", "weight", "state", "step"]
    name: str
    number: int = 0


@dataclass(frozen=True)
class Use:
    """One launch of a step: a group's kernel with what it is given there."""

    group: str
    layer: int | None
    given: tuple[Given, ...]


@dataclass(frozen=True)
class StepFacts:
    """A whole decode step as builds have it today: what candidates of its kernels are tried in."""

    model: str
    bucket: str
    extents: Extents
    prepare: tuple[Launch, ...]
    """the launches that open the step"""
    uses: tuple[Use, ...]
    """the others in order"""
    tried: tuple[str, ...]
    """groups whose candidates are tried in the step, those that hold most of it first"""
    weights: tuple[WeightFacts, ...]
    values: tuple[int, int, int]
    """bytes from the start of the workspace to token ids, positions and rows of all tokens"""
    workspace_bytes: int
    streams: bool
    """how builds divide L1 cache and shared memory in it: what streams gets more of the first"""
    rings: bool = False
    """the same: rings get all of the second"""

    @cached_property
    def id(self) -> str:
        """`step-decode1-0123456789`"""
        text = digest_json([self.model, self.bucket, [u.group for u in self.uses]])
        return f"step-{self.bucket.replace(':', '')}-{text[:10]}"

    @cached_property
    def times(self) -> Mapping[str, int]:
        """Group → launches in the step."""
        return Counter(use.group for use in self.uses)


@dataclass(frozen=True)
class DeviceFacts:
    """The device that the bundle is for, with the ceilings that shares are told against."""

    target: str
    sm: int
    name: str
    driver_names: tuple[str, ...]
    l2_bytes: int
    read_gb_s: float
    copy_gb_s: float
    boundary_us: float
    tflops: Mapping[str, float]

    @property
    def sm_name(self) -> str:
        """`sm_90`"""
        return f"sm_{self.sm}"


@dataclass(frozen=True)
class Bundle:
    """Everything but the machine code itself."""

    schema: Literal[1]
    generator: str
    wish: str
    """digest of device, model, toolchain and effort: what a journal of measurements belongs to"""
    effort: str
    device: DeviceFacts
    toolchain: Mapping[str, str]
    models: tuple[ModelFacts, ...]
    groups: tuple[Group, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    """units that did not compile or were illegal, with the reason"""
    steps: tuple[StepFacts, ...] = ()
    """whole steps that near candidates are tried in once all groups are measured"""

    def __post_init__(self) -> None:
        names = {m.name for m in self.models}
        for group in self.groups:
            if group.model not in names:
                raise UsageError(f"model {group.model} of {group.kernel}", allowed=", ".join(names))
        for step in self.steps:
            lost = {use.group for use in step.uses} - self.group.keys()
            if lost or step.model not in names:
                told = f"{step.id} uses {', '.join(sorted(lost)) or step.model}, which is not here"
                raise UsageError(told)

    @cached_property
    def group(self) -> dict[str, Group]:
        """By id."""
        return {g.id: g for g in self.groups}

    @cached_property
    def model(self) -> dict[str, ModelFacts]:
        """By name."""
        return {m.name: m for m in self.models}

    @property
    def codes(self) -> frozenset[str]:
        """Digests of all machine code that is launched."""
        groups = (launch for g in self.groups for c in g.candidates for launch in c.launches)
        steps = (launch for step in self.steps for launch in step.prepare)
        return frozenset(launch.code for launch in (*groups, *steps))
