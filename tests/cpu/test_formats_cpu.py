"""Products of packed weights on the CPU against dequantise-then-float64, for every format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from model_builds import this_isa
from verify_build import Small, build, small

from kernelgen.formats import weight_format
from kernelgen.formats.stored import online_matrix
from kernelgen.ir.graph import Graph
from kernelgen.ir.parameters import parameters
from kernelgen.ir.reformat import product_weights, with_formats
from kernelgen.verify.built import read_build
from kernelgen.verify.supervisor import check_kernels


@dataclass(frozen=True)
class InFormats(Small):
    """The small model with layer i in format i: N and K of its matrices divide no block."""

    formats: tuple[str, ...] = ()

    def graph(self, dtype: str) -> Graph:
        graph = super().graph(dtype)
        chosen = {
            name: weight_format(self.formats[int(name.split(".")[1])])
            for name in product_weights(graph)
            if name.startswith("layers.")
        }
        return with_formats(graph, chosen)

    def matrices(self, dtype: str):
        return {
            p.name: online_matrix(p.name, *p.type.shape, p.type.dtype)
            for p in parameters(self.graph(dtype))
            if p.name.startswith("layers.") and p.type.dtype.name in self.formats
        }


PAIRS = [
    ("int4_g32", "mxfp4"),
    ("fp8_channel", "nvfp4"),
    ("int4_g128_f16_zp", "fp8_block128"),
    ("int8_g64_zp", "mxfp8"),
    ("int3_channel", "fp8_tensor"),
]


@pytest.mark.row("R-068")
@pytest.mark.parametrize(
    ("formats", "dtype", "isa"),
    [
        *((pair, "bfloat16", "best") for pair in PAIRS[:3]),
        *((p, "float32", "avx2") for p in PAIRS[3:]),
    ],
    ids=str,
)
def test_packed_products(formats: tuple[str, str], dtype: str, isa: str, tmp_path: Path) -> None:
    plain = small()
    subject = InFormats(plain.architecture, plain.spec, formats)
    isa = this_isa() if isa == "best" else isa
    folder = build(tmp_path / "b", subject, dtype, isa=isa, matrices=subject.matrices(dtype))
    built = read_build(folder)
    names = [k.name for k in built.kernels if any(o.dtype in formats for o in k.operands)]
    checks = check_kernels(built, kernels=names, isas=[isa])
    missed = [f"{c.subject} {c.what}: {c.detail}" for c in checks if not c.passed]
    assert names and not missed, "\n".join(missed)
