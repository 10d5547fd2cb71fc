"""Graphs and kernel families for planner tests: models by shape, random blocks, random legality."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from kernelgen.archs.registry import architectures
from kernelgen.core.dtypes import BFLOAT16, FLOAT32
from kernelgen.hw.device import Device
from kernelgen.ir.expr import arg
from kernelgen.ir.graph import Block, BlockBuilder, Graph, Placement, Role
from kernelgen.ir.types import Dim, Sizes, Type
from kernelgen.lower import lower_decoder
from kernelgen.ops import Pointwise, RowReduce
from kernelgen.planner.family import Match, Price, Refusal
from kernelgen.planner.network import Network, Region, bits
from kernelgen.planner.variant import variant_text
from kernelgen.spec.config import read_config
from kernelgen.spec.model import Activation, AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from kernelgen.spec.rope import RopeSpec

WIDTH = 8
ROW = Type((Dim.T, WIDTH), FLOAT32)


ARCHITECTURES = sorted(
    a.name for a in architectures().values() if (a.folder / "golden.plan").is_file()
)
"""those that GPUs have kernels for"""


def tiny_graph(name: str) -> Graph:
    """The graph of an architecture's smallest config, bfloat16."""
    architecture = architectures()[name]
    config = read_config(architecture.folder / "tiny.json")
    return architecture.lower(architecture.read(config), BFLOAT16)


@dataclass(frozen=True)
class Shape:
    """A dense decoder by its numbers."""

    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    layers: int
    head_dim: int = 128
    qk_norm: bool = False
    bases: tuple[float, ...] = (1e4,)
    """rotary bases, in turns over the layers; 0 rotates nothing"""
    windows: tuple[int | None, ...] = (None,)
    """in turns over the layers"""


EIGHT_B = Shape(4096, 32, 8, 12288, 151936, 36, qk_norm=True)
"""8 billion parameters"""
SIX_TENTHS_B = Shape(1024, 16, 8, 3072, 151936, 28, qk_norm=True)
ONE_B = Shape(2048, 32, 8, 8192, 128256, 16, head_dim=64)
TWO_B = Shape(2560, 20, 4, 8192, 100352, 24, windows=(None, 128, 128, 128))
ODD = Shape(576, 9, 3, 1536, 49152, 30, head_dim=64)
"""none of it a power of two"""
SMALL = Shape(128, 4, 2, 320, 512, 4, head_dim=64, qk_norm=True)
MIXED = Shape(64, 4, 2, 96, 160, 6, head_dim=32, bases=(1e4, 1e4, 0, 5e5), windows=(None, 8, 8))


def decoder(shape: Shape) -> Graph:
    """Its graph, bfloat16."""
    layers = tuple(_layer(shape, i) for i in range(shape.layers))
    spec = ModelSpec("decoder", layers, shape.hidden, shape.vocab, 4096, 1e-6, True, BFLOAT16)
    return lower_decoder(spec, BFLOAT16)


def _layer(shape: Shape, index: int) -> LayerSpec:
    base = shape.bases[index % len(shape.bases)]
    attention = AttentionSpec(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        scale=shape.head_dim**-0.5,
        rope=RopeSpec(shape.head_dim, base) if base else None,
        window=shape.windows[index % len(shape.windows)],
        qk_norm=shape.qk_norm,
    )
    return LayerSpec(attention, MlpSpec(shape.intermediate, Activation.SILU), 1e-6)


@st.composite
def blocks(draw: st.DrawFn, most: int = 6) -> Block:
    """A block of row-wise ops over two streams; any values may leave it."""
    builder = BlockBuilder("random")
    values = [builder.declare(f"s{i}", ROW, Role.STREAM) for i in range(2)]
    made: list[str] = []
    for i in range(draw(st.integers(1, most))):
        inputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True))
        if draw(st.integers(0, 4)) == 0:
            builder.apply(f"n{i}", RowReduce("sum", arg(0)), inputs[0])
            continue  # nobody reads the number: an output of its own
        expr = arg(0) + float(i) if len(inputs) == 1 else arg(0) * arg(1)
        made.append(builder.apply(f"n{i}", Pointwise(expr, FLOAT32), *inputs))
        values.append(made[-1])
    leaving = draw(st.lists(st.sampled_from(made), unique=True)) if made else []
    return builder.build([(f"s{i}", name) for i, name in enumerate(leaving)])


def chain(block: Block, times: int) -> Graph:
    """The block placed several times in a row."""
    return Graph("chain", (block,), tuple(Placement(0, i) for i in range(times)))


@dataclass(frozen=True)
class RandomFamily:
    """Takes every single op, and unions that a seed allows and that grow from what it takes."""

    seed: int
    name: str = "random"
    backend: str = "toy"
    _taken: dict[int, set[int]] = field(default_factory=dict, compare=False)

    def match(self, region: Region, phase: str) -> Match | Refusal | None:
        if region.mask not in self.taken(region.network):
            return Refusal("the seed says no")
        return Match(self, region, None, variant_text(region))

    def price(self, match: Match, sizes: Sizes, device: Device) -> Price | Refusal:
        return Price(0, 0, self.us(match.region.mask), {}, "modelled")

    def us(self, mask: int) -> float:
        """1 to 100, the same for the same mask and seed."""
        return 1 + self._hash(mask) % 100

    def taken(self, network: Network) -> set[int]:
        """All masks that the family takes."""
        key = id(network.block)
        if key not in self._taken:
            self._taken[key] = set(self._grow(network))
        return self._taken[key]

    def _grow(self, network: Network) -> Iterable[int]:
        found = {1 << i for i in range(len(network.nodes))}
        todo = list(found)
        while todo:
            mask = todo.pop()
            near = 0
            for i in bits(mask):
                near |= network.neighbours[i]
            for i in bits(near & ~mask):
                bigger = mask | 1 << i
                if bigger not in found and network.convex(bigger) and self._hash(bigger) % 3:
                    found.add(bigger)
                    todo.append(bigger)
        return found

    def _hash(self, mask: int) -> int:
        return zlib.crc32(f"{self.seed}:{mask}".encode())
