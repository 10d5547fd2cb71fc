"""Owns the ops: one file each with shape rule, cost, reference meaning and traits."""

from kernelgen.ops.attention import Attention
from kernelgen.ops.cache_write import CacheWrite
from kernelgen.ops.embed import Embed
from kernelgen.ops.linear import Linear
from kernelgen.ops.pointwise import Pointwise
from kernelgen.ops.reduce import RowReduce
from kernelgen.ops.rope import Rope
from kernelgen.ops.sample import Sample
from kernelgen.ops.select import SelectRows
from kernelgen.ops.view import View

__all__ = [
    "Attention",
    "CacheWrite",
    "Embed",
    "Linear",
    "Pointwise",
    "Rope",
    "RowReduce",
    "Sample",
    "SelectRows",
    "View",
]
