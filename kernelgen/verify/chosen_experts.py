"""Owns random choices of experts, as a router would leave them to the kernels after it."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.ir.graph import Block
from kernelgen.ir.op import Trait
from kernelgen.verify.tensors import Generator, Tensor

_REMOTE_SHARE = 0.05


def chosen_experts(block: Block, name: str, shape: Sequence[int], made: Generator) -> Tensor:
    """`int32 [rows, k]`: different experts in each row.

    Where a product alone reads them some are -1, experts of another rank, and every third row
    chooses like the first one, so that one expert has many rows and others none.
    """
    import torch

    readers = [node for node in block.nodes if name in node.inputs]
    multiplied = all(node.op.has(Trait.EXPERTS) for node in readers)
    first = block.input_types(readers[0])[1 if multiplied else 0]
    experts = first.shape[0] if multiplied else first.row_width
    assert isinstance(experts, int)
    ids = torch.rand(shape[0], experts, generator=made).argsort(dim=1)[:, : shape[1]]
    if multiplied:
        ids[::3] = ids[:1].clone()
        ids[torch.rand(ids.shape, generator=made) < _REMOTE_SHARE] = -1
    return ids.to(torch.int32)
