"""Generated products under Triton's interpreter: every element against float64, rows of any number, sizes that do not divide."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
from gpu_trials import Trial, tiny

from kernelgen.codegen.families.row_prep import row_prep
from kernelgen.codegen.families.triton_skinny import padded_rows
from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.verify.scenario import scenarios

ARCHITECTURES = ("qwen3", "granite_swa", "llama")
_ROUNDED_TWICE = 2.0**-6
"""a bfloat16 row that is scaled after the product: each term is off by 2⁻⁸ at most, sums by far less; of a row's largest"""


def _ops(architecture: str, kind: str) -> list[str]:
    """The ops of a fused kernel; architectures with biases add them."""
    bias = architecture != "qwen3"

    def with_bias(*names: str) -> list[str]:
        return [x for n in names for x in ((n, f"{n}.add_bias") if bias else (n,))]

    norm = {"qkv": "attn_norm", "gate_up": "mlp_norm"}
    products = {
        "qkv": with_bias("attn.q", "attn.k", "attn.v"),
        "o": [*with_bias("attn.o"), "attn.residual"],
        "gate_up": [*with_bias("mlp.gate", "mlp.up"), "mlp.act"],
        "down": [*with_bias("mlp.down"), "mlp.residual"],
    }
    name, _, normed = kind.partition("+")
    before = [f"{norm[name]}.stat", norm[name]] if normed else []
    return before + products[name]


KINDS = ("qkv", "qkv+norm", "o", "gate_up", "gate_up+norm", "down")
TILES = {
    "gemv": [{"outputs": 16, "depth": 128, "warps": 4}, {"outputs": 64, "depth": 32, "warps": 4}],
    "skinny": [
        {"outputs": 64, "depth": 64, "splits": 1, "stages": 2, "warps": 4, "ahead": 0},
        {"outputs": 32, "depth": 16, "splits": 3, "stages": 2, "warps": 4, "ahead": 0},
    ],
    "gemm": [
        {"rows": 64, "outputs": 64, "depth": 64, "stages": 2, "warps": 4},
        {"rows": 128, "outputs": 128, "depth": 32, "stages": 2, "warps": 4},
    ],
}


def _run(
    architecture: str, block: str, ops: list[str], family: str, tile: dict[str, int], tokens: int, dtype: DType
) -> list[str]:
    model = tiny(architecture, dtype)
    phase = "mixed" if family == "gemm" else "decode"
    kernel = model.kernel(model.block(block), ops, family, phase)
    scenario = min(scenarios(phase, model.positions, 513), key=lambda s: abs(s.tokens - tokens))
    capacity = scenario.tokens + 3
    if family == "gemv":
        capacity = 1
    if family == "skinny":
        tile = {"rows": padded_rows(capacity), **tile}
    prep = row_prep(kernel.match.region, kernel.match.roles)
    slack = _ROUNDED_TWICE if prep and prep.deferred and dtype == BFLOAT16 else 0.0
    return Trial(model, kernel, tile, scenario, capacity, slack=slack).problems()


@pytest.mark.parametrize("family, tokens", [("gemv", 1), ("skinny", 2), ("skinny", 33), ("gemm", 64), ("gemm", 513)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_product(architecture: str, kind: str, family: str, tokens: int) -> None:
    number = (KINDS.index(kind) + tokens) % 2
    tile = TILES[family][number]
    if tokens == 513 and kind not in ("o", "qkv+norm"):
        pytest.skip("one kind of each shape at many rows")
    assert not _run(architecture, "layer", _ops(architecture, kind), family, tile, tokens, BFLOAT16)
