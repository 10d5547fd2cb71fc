"""Owns the table of packings: under which names and in which order producers store a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Packing:
    """How one producer stores a quantised matrix `[N, K]`; names follow `<module>.`.

    `arrangement` of the codes:
      bytes         a code a byte, `[N, K]`
      signed        the same, integers as int8
      nibbles       two codes a byte, the lower K index in the low half, `[N, K/2]`
      stream        little-endian bit stream in int32 along K, `[N, ⌈K·b/32⌉]`
      awq           eight nibbles an int32 along N in the order 0 2 4 6 1 3 5 7, `[K, N/8]`
    `transposed`: K comes first, of codes and of scales: `[⌈K·b/32⌉, N]`, `[K/g, N]`. Zero points
    are packed like codes, but always along N; `zero_bias` is added to what is read.
    """

    name: str
    arrangement: str
    codes: str = "weight"
    scale: str = "weight_scale"
    zero: str = ""
    factor: str = ""
    transposed: bool = False
    zero_bias: int = 0
    factor_divides: bool = False
    """the file holds 1 / factor"""
    order: str = ""
    """which scale a column belongs to: read, and refused unless it is column / group"""
    unused: tuple[str, ...] = ()
    """what may be there and carries nothing for a product of unquantised activations"""

    @property
    def dtype(self) -> tuple[str, ...]:
        """Safetensors types of the codes."""
        return {
            "bytes": ("F8_E4M3", "U8"),
            "signed": ("I8",),
            "nibbles": ("U8", "I8"),
        }.get(self.arrangement, ("I32",))


_ACTIVATIONS = ("input_scale", "input_global_scale", "input_zero_point")
_GPTQ = {
    "codes": "qweight",
    "scale": "scales",
    "zero": "qzeros",
    "transposed": True,
    "order": "g_idx",
}
PACKINGS: Mapping[str, Packing] = MappingProxyType(
    {
        p.name: p
        for p in (
            Packing("float8", "bytes", unused=_ACTIVATIONS),
            Packing("float8_inv", "bytes", scale="weight_scale_inv", unused=_ACTIVATIONS),
            Packing("float8_short", "bytes", scale="scale", unused=_ACTIVATIONS),
            Packing("int8_bytes", "signed", unused=_ACTIVATIONS),
            Packing("nibbles", "nibbles", codes="weight_packed", unused=_ACTIVATIONS),
            Packing("nibbles_plain", "nibbles", unused=_ACTIVATIONS),
            Packing("nibbles_blocks", "nibbles", codes="weight_blocks", scale="weight_scales"),
            Packing(
                "nvfp4_divisor",
                "nibbles",
                codes="weight_packed",
                factor="weight_global_scale",
                factor_divides=True,
                unused=_ACTIVATIONS,
            ),
            Packing("nvfp4_factor", "nibbles", factor="weight_scale_2", unused=_ACTIVATIONS),
            Packing(
                "packed_int",
                "stream",
                codes="weight_packed",
                zero="weight_zero_point",
                order="weight_g_idx",
                unused=("weight_shape", *_ACTIVATIONS),
            ),
            Packing("gptq", "stream", zero_bias=1, **_GPTQ),  # type: ignore[arg-type]
            Packing("gptq_v2", "stream", **_GPTQ),  # type: ignore[arg-type]
            Packing("awq", "awq", codes="qweight", scale="scales", zero="qzeros", transposed=True),
        )
    }
)
"""float8: compressed-tensors, ModelOpt, native; float8_inv: DeepSeek, AutoRound; float8_short:
DeepSeek V4. nibbles: MXFP4 of compressed-tensors; nibbles_plain: of Quark and DeepSeek V4;
nibbles_blocks: of gpt-oss, `gate_up_proj_blocks`. nvfp4_divisor: compressed-tensors; nvfp4_factor:
ModelOpt. packed_int: compressed-tensors. gptq stores zero points less one, gptq_v2 and the
`auto_round` label as they are."""
