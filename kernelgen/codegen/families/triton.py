"""Owns the catalogue of GPU families; the first refusal is told, so specific ones come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelgen.codegen.families.triton_chunks import chunk_roles, quote_chunks
from kernelgen.codegen.families.triton_clustered import ClusteredTile, clustered
from kernelgen.codegen.families.triton_conv import quote_conv, short_conv_roles
from kernelgen.codegen.families.triton_decode import decode_roles, quote_decode
from kernelgen.codegen.families.triton_delta import delta_step_roles, quote_delta
from kernelgen.codegen.families.triton_experts import experts_roles
from kernelgen.codegen.families.triton_experts_grouped import quote_grouped
from kernelgen.codegen.families.triton_experts_packed import quote_packed_experts
from kernelgen.codegen.families.triton_experts_pairs import quote_pairs
from kernelgen.codegen.families.triton_experts_sorted import quote_sorted
from kernelgen.codegen.families.triton_family import Quoter, TritonFamily
from kernelgen.codegen.families.triton_fixed import (
    MOST,
    ONE,
    SOME,
    FixedFamily,
    gemm_of_any,
    quote_attention,
)
from kernelgen.codegen.families.triton_gemm import GemmTile, gemm
from kernelgen.codegen.families.triton_gemm_tma import (
    TmaTile,
    gemm_tma,
    ring_roles,
    tma_roles,
)
from kernelgen.codegen.families.triton_gemv import GemvTile, gemv
from kernelgen.codegen.families.triton_head import head_sample_roles, quote_head
from kernelgen.codegen.families.triton_heads import head_linear_roles, quote_heads
from kernelgen.codegen.families.triton_latent import latent_decode_roles, quote_latent
from kernelgen.codegen.families.triton_latent_prefill import (
    latent_prefill_roles,
    quote_latent_prefill,
)
from kernelgen.codegen.families.triton_linear import gemv_roles, product_roles, quote_product
from kernelgen.codegen.families.triton_packed import (
    PackedGemvTile,
    PackedTile,
    gemv_packed,
    packed,
    packed_roles,
)
from kernelgen.codegen.families.triton_prefill import prefill_roles, quote_prefill
from kernelgen.codegen.families.triton_ring import RingTile, ring
from kernelgen.codegen.families.triton_route import quote_route, route_roles_of
from kernelgen.codegen.families.triton_rows import quote_rows, rows_roles
from kernelgen.codegen.families.triton_sample import quote_sample, sample_roles
from kernelgen.codegen.families.triton_skinny import SkinnyTile, skinny
from kernelgen.codegen.families.triton_sliced import SlicedTile, sliced
from kernelgen.codegen.families.triton_sliced_packed import SlicedPackedTile, sliced_packed
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Catalogue, Family
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel
from kernelgen.tables import Tables


def _source(kernel: Kernel, choice: Mapping[str, int]) -> str:
    from kernelgen.codegen.triton.source import source_digest  # families are imported before it

    return source_digest(kernel, choice)


_ONE_ROW = "it takes one row: other sizes have another kernel, which adds up in another order"
_FEW_ROWS = "it takes few rows: more have another kernel, which adds up in another order"
_MANY_ROWS = "it takes many rows: fewer have another kernel, which adds up in another order"
_PARTS = "how many parts a request's cache is read in follows from the batch"
_PAIRS = "it takes few pairs: more are sorted by expert and added up in another order"
_BY_SIZE = "its tile, and with it the order of additions, is chosen for each size"

_Named = tuple[str, Callable[[Region, str], Any], Quoter, str]


def triton_families(
    tables: Tables, require_tuned: bool = False, invariant: bool = False
) -> Catalogue:
    """All GPU families, answering from `tables` where they hold a measurement.

    `invariant`: with those that have one tile for every size; the others say why they vary.
    """
    found: list[Family] = []
    if invariant:
        found += [
            FixedFamily(name, roles, quote, tables, _source, reference=reference)
            for name, roles, quote, reference in _FIXED
        ]
    taken = {family.name for family in found}
    found += [
        TritonFamily(name, roles, quote, tables, _source, require_tuned=require_tuned, varies=why)
        for name, roles, quote, why in _FAMILIES
        if name not in taken
    ]
    return tuple(found)


_FAMILIES: Sequence[_Named] = (
    ("head_sample", head_sample_roles, quote_head, _BY_SIZE),
    ("gemv", gemv_roles, quote_product(GemvTile, gemv), _ONE_ROW),
    ("sliced", product_roles, quote_product(SlicedTile, sliced), _FEW_ROWS),
    ("clustered", product_roles, quote_product(ClusteredTile, clustered), _FEW_ROWS),
    ("ring", ring_roles, quote_product(RingTile, ring), _FEW_ROWS),
    ("skinny", product_roles, quote_product(SkinnyTile, skinny), _FEW_ROWS),
    ("gemm", product_roles, quote_product(GemmTile, gemm), _MANY_ROWS),
    ("gemm_tma", tma_roles, quote_product(TmaTile, gemm_tma), _MANY_ROWS),
    ("gemv_packed", packed_roles, quote_product(PackedGemvTile, gemv_packed), _ONE_ROW),
    (
        "sliced_packed",
        packed_roles,
        quote_product(SlicedPackedTile, sliced_packed),
        _FEW_ROWS,
    ),
    ("packed", packed_roles, quote_product(PackedTile, packed), _BY_SIZE),
    ("attention_decode", decode_roles, quote_decode, _PARTS),
    ("attention_prefill", prefill_roles, quote_prefill, _BY_SIZE),
    ("short_conv", short_conv_roles, quote_conv, ""),
    ("delta_step", delta_step_roles, quote_delta, _BY_SIZE),
    ("delta_chunks", chunk_roles, quote_chunks, _BY_SIZE),
    ("latent_decode", latent_decode_roles, quote_latent, _PARTS),
    ("latent_prefill", latent_prefill_roles, quote_latent_prefill, _BY_SIZE),
    ("head_linear", head_linear_roles, quote_heads, _BY_SIZE),
    ("route", route_roles_of, quote_route, _BY_SIZE),
    ("experts_pairs", experts_roles(alone=False), quote_pairs, _PAIRS),
    ("experts_packed", experts_roles(alone=False), quote_packed_experts, _PAIRS),
    ("experts_grouped", experts_roles(alone=True), quote_grouped, _PAIRS),
    ("experts_sorted", experts_roles(alone=True), quote_sorted, _BY_SIZE),
    ("sample", sample_roles, quote_sample, _BY_SIZE),
    ("rows", rows_roles, quote_rows, _BY_SIZE),
)

_FIXED: Sequence[tuple[str, Callable[[Region, str], Any], Quoter, Sizes]] = (
    ("gemm", product_roles, quote_product(GemmTile, gemm_of_any), SOME),
    ("packed", packed_roles, quote_product(PackedTile, packed), SOME),
    ("attention_fixed", prefill_roles, quote_attention, SOME),
    ("route", route_roles_of, quote_route, ONE),
    ("experts_sorted", experts_roles(alone=True), quote_sorted, SOME),
    ("sample", sample_roles, quote_sample, MOST),
    ("rows", rows_roles, quote_rows, ONE),
)
