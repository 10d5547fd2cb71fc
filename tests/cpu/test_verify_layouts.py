"""The checker's packers against the words of docs/abi.md, element by element."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.verify.layouts import PAGE_TOKENS, PagePart, laid_out, pack_panel, unpack_panel

# One whole panel; padding in N, in K, in both; several panels.
MATRICES = [(32, 2), (1, 6), (33, 8), (5, 7), (70, 64)]


@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_panels_hold_each_element_where_the_boundary_says(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    n, k = shape
    matrix = torch.arange(1, n * k + 1, dtype=torch.float32).view(n, k).to(dtype)
    packed = pack_panel(matrix)
    panels, even = -(-n // 32), k + k % 2
    narrow = dtype == torch.bfloat16
    assert packed.shape == ((panels, even // 2, 32, 2) if narrow else (panels, even, 32))
    for row, column in itertools.product(range(panels * 32), range(even)):
        inside = row < n and column < k
        expected = matrix[row, column] if inside else 0
        pair = (row // 32, column // 2, row % 32, column % 2)
        found = packed[pair if narrow else (row // 32, column, row % 32)]
        assert found == expected, (row, column)
    assert torch.equal(unpack_panel(packed, n, k), matrix)


def test_rows_are_left_alone_and_unknown_layouts_refused() -> None:
    matrix = torch.randn(3, 5)
    assert torch.equal(laid_out(matrix, "rows"), matrix)
    with pytest.raises(KeyError):
        laid_out(matrix, "columns")


def page_of(part: PagePart, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One page of 16 tokens, built by the shapes that the boundary writes down."""
    heads, dim = part.kv_heads, part.head_dim
    if part.dtype == BFLOAT16:
        k = keys.view(16, heads, dim // 2, 2).permute(1, 2, 0, 3)  # [heads][dim/2][16][2]
        v = values.view(8, 2, heads, dim).permute(2, 0, 3, 1)  # [heads][16/2][dim][2]
    else:
        k = keys.permute(1, 2, 0)  # [heads][dim][16]
        v = values.permute(1, 0, 2)  # [heads][16][dim]
    return torch.cat([k.reshape(-1), v.reshape(-1)])


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("heads, dim", [(1, 2), (2, 12), (3, 64)])
def test_pages_hold_keys_and_values_where_the_boundary_says(
    dtype: DType, heads: int, dim: int
) -> None:
    kind = getattr(torch, dtype.torch)
    part = PagePart(heads, dim, dtype, offset=192)
    keys, values = (torch.randn(PAGE_TOKENS, heads, dim).to(kind) for _ in range(2))
    pool = torch.full((4, 192 + part.stride + 64), 7, dtype=torch.uint8)
    before = pool.clone()
    part.write(pool, torch.full((16,), 2), torch.arange(16), keys, values)
    inside = pool[2, 192 : 192 + part.bytes].clone().view(kind)
    assert torch.equal(inside, page_of(part, keys, values))
    before[2, 192 : 192 + part.bytes] = pool[2, 192 : 192 + part.bytes]
    assert torch.equal(pool, before), "something outside the layer's part was written"
    found = part.read(pool, torch.full((16,), 2), torch.arange(16))
    assert torch.equal(found[0], keys) and torch.equal(found[1], values)


def test_layers_start_on_cache_lines() -> None:
    assert PagePart(1, 3, FLOAT32, 0).stride == PagePart(1, 3, FLOAT32, 0).bytes == 384
    assert PagePart(1, 2, BFLOAT16, 0).bytes == PagePart(1, 2, BFLOAT16, 0).stride == 128
    assert PagePart(1, 1, BFLOAT16, 0).stride == 64
