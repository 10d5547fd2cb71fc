"""Owns the catalogue of GPU families; the first refusal is told, so specific ones come first."""

from __future__ import annotations

from kernelgen.codegen.families.triton_decode import decode_roles, quote_decode
from kernelgen.codegen.families.triton_family import TritonFamily
from kernelgen.codegen.families.triton_gemm import gemm
from kernelgen.codegen.families.triton_gemv import gemv
from kernelgen.codegen.families.triton_head import head_sample_roles, quote_head
from kernelgen.codegen.families.triton_linear import product_roles, quote_product
from kernelgen.codegen.families.triton_prefill import prefill_roles, quote_prefill
from kernelgen.codegen.families.triton_rows import quote_rows, rows_roles
from kernelgen.codegen.families.triton_sample import quote_sample, sample_roles
from kernelgen.codegen.families.triton_skinny import skinny
from kernelgen.planner.family import Catalogue
from kernelgen.tables import Tables


def triton_families(tables: Tables) -> Catalogue:
    """All GPU families, answering from `tables` where they hold a measurement."""
    return (
        TritonFamily("head_sample", head_sample_roles, quote_head, tables),
        TritonFamily("gemv", product_roles, quote_product(gemv), tables),
        TritonFamily("skinny", product_roles, quote_product(skinny), tables),
        TritonFamily("gemm", product_roles, quote_product(gemm), tables),
        TritonFamily("attention_decode", decode_roles, quote_decode, tables),
        TritonFamily("attention_prefill", prefill_roles, quote_prefill, tables),
        TritonFamily("sample", sample_roles, quote_sample, tables),
        TritonFamily("rows", rows_roles, quote_rows, tables),
    )
