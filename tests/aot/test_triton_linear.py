"""Generated products under Triton's interpreter against float64: any number of rows, any sizes."""

from __future__ import annotations

import pytest
from gpu_trials import Tiny, Trial, architectures, tiny

from kernelgen.codegen.families import triton_sliced
from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.families.row_prep import row_prep
from kernelgen.codegen.families.triton_block import next_power_of_two
from kernelgen.codegen.families.triton_skinny import padded_rows
from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.ir.expr import arg, call
from kernelgen.ir.graph import BlockBuilder, Graph, Placement, Role
from kernelgen.ir.types import Dim, Type
from kernelgen.ops import Linear, Pointwise, RowReduce
from kernelgen.planner.plan import Kernel
from kernelgen.spec.model import CacheSpec
from kernelgen.verify.scenario import scenarios

_ROUNDED_TWICE = 2.0**-6
"""of a row's largest value: a bfloat16 row scaled after the product errs 2⁻⁸ in each term"""


def _ops(model: Tiny, kind: str) -> list[str]:
    """The ops of a fused kernel, biases included where the model has them."""
    known = {n.name for n in model.graph.blocks[model.block("layer")].nodes}
    name, _, normed = kind.partition("+")
    norm = {"qkv": "attn_norm", "gate_up": "mlp_norm"}.get(name, "")
    names = {
        "qkv": ["attn.q", "attn.k", "attn.v"],
        "o": ["attn.o", "attn.residual"],
        "gate_up": ["mlp.gate", "mlp.up", "mlp.act"],
        "down": ["mlp.down", "mlp.residual"],
    }[name]
    before = [f"{norm}.stat", norm] if normed else []
    return before + [n for name in names for n in (name, f"{name}.add_bias") if n in known]


_PRODUCT = {"qkv": "attn.q", "o": "attn.o", "gate_up": "mlp.gate", "down": "mlp.down"}


def _with(architecture: str, kind: str, dtype: DType = BFLOAT16) -> Tiny:
    """The tiny model, where it has products of that kind: experts are other kernels."""
    model = tiny(architecture, dtype)
    known = {node.name for node in model.graph.blocks[model.block("layer")].nodes}
    if _PRODUCT[kind.partition("+")[0]] not in known:
        pytest.skip("its layers have experts there")
    return model


KINDS = ("qkv", "qkv+norm", "o", "gate_up", "gate_up+norm", "down")
TILES = {
    "gemv": [
        {"outputs": 16, "depth": 128, "warps": 4, "blocks": 0},
        {"outputs": 64, "depth": 32, "warps": 4, "blocks": 0},
    ],
    "sliced": [
        {"outputs": 16, "depth": 128, "warps": 4},
        {"outputs": 32, "depth": 32, "warps": 2},
    ],
    "clustered": [
        {"outputs": 16, "depth": 32, "cluster": 3, "warps": 4},
        {"outputs": 64, "depth": 16, "cluster": 8, "warps": 4},
        {"outputs": 32, "depth": 64, "cluster": 1, "warps": 4},
        {"outputs": 16, "depth": 16, "cluster": 2, "warps": 4},
        {"outputs": 16, "depth": 16, "cluster": 6, "warps": 4},
    ],
    "ring": [
        {"outputs": 64, "depth": 64, "stages": 2, "cluster": 1, "blocks": 0},
        {"outputs": 64, "depth": 64, "stages": 2, "cluster": 4, "blocks": 0},
        {"outputs": 128, "depth": 128, "stages": 3, "cluster": 2, "blocks": 0},
    ],
    "skinny": [
        {"outputs": 64, "depth": 64, "splits": 1, "stages": 2, "warps": 4, "ahead": 0},
        {"outputs": 32, "depth": 16, "splits": 3, "stages": 2, "warps": 4, "ahead": 0},
    ],
    "gemm": [
        {"rows": 64, "outputs": 64, "depth": 64, "stages": 2, "warps": 4},
        {"rows": 128, "outputs": 128, "depth": 32, "stages": 2, "warps": 4},
    ],
    "gemm_tma": [
        {"rows": 64, "outputs": 64, "depth": 64, "stages": 2, "warps": 4, "bands": 2},
        {"rows": 128, "outputs": 256, "depth": 64, "stages": 2, "warps": 4, "bands": 8},
    ],
}


STORED = ("gemm_tma", "ring")
"""families whose operands come by descriptors"""


def _phase(family: str) -> str:
    return "mixed" if family in ("gemm", "gemm_tma") else "decode"


def _run(model: Tiny, kernel: Kernel, family: str, tile: dict[str, int], tokens: int) -> list[str]:
    phase = _phase(family)
    scenario = min(scenarios(phase, model.positions, 513), key=lambda s: abs(s.tokens - tokens))
    capacity = 1 if family == "gemv" else scenario.tokens + 3
    if family in ("skinny", "sliced", "clustered", "ring"):
        padded = padded_rows if family == "skinny" else triton_sliced.padded_rows
        tile = {"rows": padded(capacity), **tile}
    region, roles = kernel.match.region, kernel.match.roles
    prep, dtype = row_prep(region, roles), region.value(roles.x).type.dtype
    slack = _ROUNDED_TWICE if prep and prep.deferred and dtype == BFLOAT16 else 0.0
    return Trial(model, kernel, tile, scenario, capacity, slack=slack).problems()


SIZES = [
    ("gemm_tma", 7),
    ("gemm_tma", 64),
    ("gemm_tma", 513),
    ("gemv", 1),
    ("sliced", 2),
    ("sliced", 13),
    ("clustered", 2),
    ("clustered", 13),
    ("clustered", 33),
    ("ring", 2),
    ("ring", 13),
    ("ring", 33),
    ("skinny", 2),
    ("skinny", 33),
    ("gemm", 7),
    ("gemm", 64),
    ("gemm", 513),
]


def _chosen(kind: str, family: str, tokens: int) -> dict[str, int]:
    tiles = TILES[family]
    return tiles[(KINDS.index(kind) + tokens) % len(tiles)]


@pytest.mark.parametrize("family, tokens", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", architectures())
def test_product(architecture: str, kind: str, family: str, tokens: int) -> None:
    if tokens == 513 and kind not in ("o", "qkv+norm"):
        pytest.skip("one kind of each shape at many rows")
    if family == "gemm_tma" and "+norm" in kind:
        pytest.skip("rows have to be stored")
    model = _with(architecture, kind)
    phase = _phase(family)
    if family in STORED and _row_bytes(model, kind) % 16:
        with pytest.raises(AssertionError, match="are no multiple of 16 bytes"):
            model.kernel(model.block("layer"), _ops(model, kind), family, phase)
        return
    kernel = model.kernel(model.block("layer"), _ops(model, kind), family, phase)
    assert not _run(model, kernel, family, _chosen(kind, family, tokens), tokens)


@pytest.mark.parametrize("outputs, blocks", [(8, 3), (2, 5)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", architectures())
def test_row_kept_by_few_blocks(architecture: str, kind: str, outputs: int, blocks: int) -> None:
    """Blocks take several tiles, not equally many, of matrices with other numbers of columns."""
    model = _with(architecture, kind)
    kernel = model.kernel(model.block("layer"), _ops(model, kind), "gemv", "decode")
    roles = kernel.match.roles
    assert isinstance(roles, LinearRoles)
    depth = next_power_of_two(roles.k)
    tile = {"outputs": outputs, "depth": depth, "warps": 4, "blocks": blocks}
    assert not _run(model, kernel, "gemv", tile, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", architectures())
def test_row_kept_in_two_pieces(architecture: str, kind: str) -> None:
    """The second piece is as long as what is left, or longer."""
    model = _with(architecture, kind)
    kernel = model.kernel(model.block("layer"), _ops(model, kind), "gemv", "decode")
    roles = kernel.match.roles
    assert isinstance(roles, LinearRoles)
    prep = row_prep(kernel.match.region, roles)
    if prep and prep.passes > 1:
        pytest.skip("its statistic has to be known before the products")
    depth = next_power_of_two(roles.k) // 2
    tile = {"outputs": 4, "depth": depth, "warps": 4, "blocks": 3}
    assert not _run(model, kernel, "gemv", tile, 1)


def _row_bytes(model: Tiny, kind: str) -> int:
    """Of what the product reads, in bfloat16."""
    block = model.graph.blocks[model.block("layer")]
    product = _PRODUCT[kind.partition("+")[0]]
    first = next(n for n in block.nodes if n.name == product)
    return 2 * block.value[first.inputs[1]].type.row_width


@pytest.mark.parametrize("family, tokens", [("gemv", 1), ("skinny", 7), ("gemm", 64)])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("architecture", architectures())
def test_head_reads_the_chosen_rows(
    architecture: str, family: str, tokens: int, dtype: DType
) -> None:
    model = tiny(architecture, dtype)
    ops = [n.name for n in model.graph.blocks[model.block("head")].nodes if n.name != "sample"]
    kernel = model.kernel(model.block("head"), ops, family, _phase(family))
    assert not _run(model, kernel, family, TILES[family][0], tokens)


@pytest.mark.parametrize("family, tokens", [("gemv", 1), ("skinny", 7), ("gemm", 64)])
@pytest.mark.parametrize("kind", ["qkv+norm", "gate_up", "down"])
@pytest.mark.parametrize("architecture", architectures())
def test_float32_is_multiplied_as_float32(
    architecture: str, kind: str, family: str, tokens: int
) -> None:
    model = _with(architecture, kind, FLOAT32)
    phase = _phase(family)
    kernel = model.kernel(model.block("layer"), _ops(model, kind), family, phase)
    assert not _run(model, kernel, family, _chosen(kind, family, tokens), tokens)


def _toy(rows: str) -> Tiny:
    """Rows prepared by mean and variance, or a maximum; a product beside a pair that meets."""
    build, width = BlockBuilder("toy"), 48
    x = build.declare("x", Type((Dim.T, width), FLOAT32), Role.STREAM)
    a, b, c = arg(0), arg(1), arg(2)
    mean = build.apply("mean", RowReduce("mean", a), x)
    spread = build.apply("spread", RowReduce("mean", (a - b) * (a - b)), x, mean)
    normed = build.apply(
        "norm", Pointwise((a - b) * call("rsqrt", c + 1e-5), BFLOAT16), x, mean, spread
    )
    largest = build.apply("largest", RowReduce("max", a * a), x)
    scaled = build.apply("scaled", Pointwise(a / (b + 1.0), BFLOAT16), x, largest)
    made = {}
    for name, outputs in (("q", 40), ("gate", 24), ("up", 24)):
        weight = build.declare(f"{name}.weight", Type((outputs, width), BFLOAT16), Role.WEIGHT)
        made[name] = build.apply(
            name, Linear(FLOAT32), normed if rows == "norm" else scaled, weight
        )
    act = build.apply("act", Pointwise(call("tanh", a) * b, BFLOAT16), made["gate"], made["up"])
    block = build.build([("q", made["q"]), ("act", act)])
    caches = ((0, CacheSpec(1, 8, None, BFLOAT16)),)
    return Tiny("toy", Graph("toy", (block,), (Placement(0, 0),), caches), 16, 64)


@pytest.mark.parametrize("family, tokens", [("gemv", 1), ("skinny", 7), ("gemm", 64)])
@pytest.mark.parametrize("rows", ["norm", "scaled"])
@pytest.mark.parametrize("number", [0, 1])
def test_statistics_that_wait_and_pairs_beside_single_products(
    rows: str, family: str, tokens: int, number: int
) -> None:
    model = _toy(rows)
    before = ["mean", "spread", "norm"] if rows == "norm" else ["largest", "scaled"]
    kernel = model.kernel(0, [*before, "q", "gate", "up", "act"], family, _phase(family))
    assert not _run(model, kernel, family, TILES[family][number], tokens)


def test_a_wrong_kernel_is_found() -> None:
    model = tiny(architectures()[0], BFLOAT16)
    kernel = model.kernel(model.block("layer"), _ops(model, "down"), "gemv")
    scenario = scenarios("decode", model.positions, 1)[0]
    trial = Trial(model, kernel, TILES["gemv"][0], scenario, 1)
    assert not trial.problems()
    trial.given["mlp.residual"].tensor[0, 5] += 1.0
    assert "mlp.residual" in trial.compared()[0]
