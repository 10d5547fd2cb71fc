"""Owns what every building block needs: the block being built, dtypes, tables, step values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelgen.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, DType
from kernelgen.core.errors import UnsupportedError
from kernelgen.ir.graph import BlockBuilder, Role, Table
from kernelgen.ir.op import Op
from kernelgen.ir.types import Dim, Type
from kernelgen.spec.model import LayerSpec
from kernelgen.spec.rope import RopeSpec

STREAM = "x"
"""name of the residual stream"""

STEP_VALUES: Mapping[str, Type] = {
    "token_ids": Type((Dim.T,), INT32),
    "positions": Type((Dim.T,), INT32),
    "rows": Type((Dim.T,), INT32),
    "logit_tokens": Type((Dim.B,), INT32),
    "sampling": Type((Dim.B,), INT32),
}
"""ids, positions and request row of each token; token row of each logit row; where to look up how
that row is sampled"""


@dataclass(frozen=True)
class Numerics:
    """The dtype of each kind of value in one build."""

    activation: DType
    matrix: DType
    cache: DType
    stream: DType = FLOAT32
    """the residual stream: it is never multiplied by a matrix, and rounding every sum of it to
    bfloat16 would be the largest error of a bfloat16 build"""
    vector: DType = FLOAT32
    """norm weights, biases, sinks: float32 holds every stored dtype exactly"""

    @staticmethod
    def of(stored: DType, activation: DType) -> Numerics:
        """The policy: matrices are never widened without need and never lose a stored bit.

        bfloat16 stays; float16 becomes float32 (bfloat16 would drop three bits of it); float32
        follows the activations. Activations other than float32 and bfloat16 are unsupported.
        """
        if activation not in (FLOAT32, BFLOAT16):
            raise UnsupportedError(
                f"activations in {activation} are not supported", allowed="float32, bfloat16"
            )
        matrix = {BFLOAT16: BFLOAT16, FLOAT16: FLOAT32}.get(stored, activation)
        return Numerics(activation, matrix, cache=activation)


def rope_tables(kinds: Sequence[LayerSpec], positions: int) -> dict[RopeSpec, Table]:
    """One table of `positions` rows for each distinct rotary embedding, in order of first use."""
    tables: dict[RopeSpec, Table] = {}
    for layer in kinds:
        rope = layer.attention.rope
        if rope is not None and rope not in tables:
            name = f"rope.{len(tables)}"
            tables[rope] = Table(name, rope.inv_freq(), rope.scale, positions)
    return tables


@dataclass(frozen=True)
class Scope:
    """One block under construction and what its building blocks share."""

    builder: BlockBuilder
    numerics: Numerics
    tables: Mapping[RopeSpec, Table]

    def apply(self, name: str, op: Op, *inputs: str) -> str:
        """Adds a node; its one output is called `name`."""
        return self.builder.apply(name, op, *inputs)

    def stream(self, width: int, name: str = STREAM) -> str:
        """The residual stream `[T, width]`, or another one that earlier blocks hand on."""
        type_ = Type((Dim.T, width), self.numerics.stream)
        return self.builder.declare(name, type_, Role.STREAM)

    def matrix(self, name: str, outputs: int, inputs: int) -> str:
        """A weight `[outputs, inputs]`."""
        type_ = Type((outputs, inputs), self.numerics.matrix)
        return self.builder.declare(name, type_, Role.WEIGHT)

    def stack(self, name: str, experts: int, outputs: int, inputs: int) -> str:
        """A weight `[experts, outputs, inputs]`: one matrix an expert."""
        type_ = Type((experts, outputs, inputs), self.numerics.matrix)
        return self.builder.declare(name, type_, Role.WEIGHT)

    def vector(self, name: str, width: int) -> str:
        """A weight `[width]`."""
        type_ = Type((width,), self.numerics.vector)
        return self.builder.declare(name, type_, Role.WEIGHT)

    def exact(self, name: str, *shape: int) -> str:
        """A weight of any shape that is never rounded: float32, whatever matrices are."""
        return self.builder.declare(name, Type(shape, self.numerics.vector), Role.WEIGHT)

    def cache(self, kv_heads: int, head_dim: int) -> str:
        """The layer's keys and values, called `kv`."""
        type_ = Type((kv_heads, head_dim), self.numerics.cache)
        return self.builder.declare("kv", type_, Role.STATE)

    def latent_cache(self, width: int) -> str:
        """The layer's latent rows, called `latents`."""
        type_ = Type((width,), self.numerics.cache)
        return self.builder.declare("latents", type_, Role.STATE)

    def state(self, name: str, *shape: int, dtype: DType = FLOAT32) -> str:
        """What a scan of the layer carries from step to step."""
        return self.builder.declare(name, Type(shape, dtype), Role.STATE)

    def rope(self, spec: RopeSpec) -> str:
        """The table of a rotary embedding, `float32 [positions, 2, dim / 2]`."""
        table = self.tables[spec]
        return self.builder.declare(table.name, table.type, Role.TABLE)

    def step(self, name: str) -> str:
        """One of `STEP_VALUES`."""
        return self.builder.declare(name, STEP_VALUES[name], Role.STEP)

    def width(self, name: str) -> int:
        """Length of a value's last axis."""
        return self.builder.type_of(name).row_width
