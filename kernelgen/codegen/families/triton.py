"""Owns the catalogue of GPU families; the first refusal is told, so specific ones come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelgen.codegen.families.triton_decode import decode_roles, quote_decode
from kernelgen.codegen.families.triton_experts import (
    experts_roles,
    quote_pairs,
    quote_route,
    quote_sorted,
    route_roles_of,
)
from kernelgen.codegen.families.triton_family import Quoter, TritonFamily
from kernelgen.codegen.families.triton_gemm import GemmTile, gemm
from kernelgen.codegen.families.triton_gemm_tma import TmaTile, gemm_tma, tma_roles
from kernelgen.codegen.families.triton_gemv import GemvTile, gemv
from kernelgen.codegen.families.triton_head import head_sample_roles, quote_head
from kernelgen.codegen.families.triton_linear import product_roles, quote_product
from kernelgen.codegen.families.triton_packed import (
    PackedGemvTile,
    PackedTile,
    gemv_packed,
    packed,
    packed_roles,
)
from kernelgen.codegen.families.triton_prefill import prefill_roles, quote_prefill
from kernelgen.codegen.families.triton_rows import quote_rows, rows_roles
from kernelgen.codegen.families.triton_sample import quote_sample, sample_roles
from kernelgen.codegen.families.triton_skinny import SkinnyTile, skinny
from kernelgen.codegen.families.triton_sliced import SlicedTile, sliced
from kernelgen.codegen.families.triton_sliced_packed import SlicedPackedTile, sliced_packed
from kernelgen.planner.family import Catalogue
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel
from kernelgen.tables import Tables


def _source(kernel: Kernel, choice: Mapping[str, int]) -> str:
    from kernelgen.codegen.triton.source import source_digest  # families are imported before it

    return source_digest(kernel, choice)


def triton_families(tables: Tables, require_tuned: bool = False) -> Catalogue:
    """All GPU families, answering from `tables` where they hold a measurement."""

    def family(name: str, roles: Callable[[Region, str], Any], quote: Quoter) -> TritonFamily:
        return TritonFamily(name, roles, quote, tables, _source, require_tuned=require_tuned)

    return (
        family("head_sample", head_sample_roles, quote_head),
        family("gemv", product_roles, quote_product(GemvTile, gemv)),
        family("sliced", product_roles, quote_product(SlicedTile, sliced)),
        family("skinny", product_roles, quote_product(SkinnyTile, skinny)),
        family("gemm", product_roles, quote_product(GemmTile, gemm)),
        family("gemm_tma", tma_roles, quote_product(TmaTile, gemm_tma)),
        family("gemv_packed", packed_roles, quote_product(PackedGemvTile, gemv_packed)),
        family("sliced_packed", packed_roles, quote_product(SlicedPackedTile, sliced_packed)),
        family("packed", packed_roles, quote_product(PackedTile, packed)),
        family("attention_decode", decode_roles, quote_decode),
        family("attention_prefill", prefill_roles, quote_prefill),
        family("route", route_roles_of, quote_route),
        family("experts_pairs", experts_roles(True), quote_pairs),
        family("experts_sorted", experts_roles(False), quote_sorted),
        family("sample", sample_roles, quote_sample),
        family("rows", rows_roles, quote_rows),
    )
