"""Owns the ops: one file each with shape rule, cost, reference meaning and traits."""

from kernelgen.ops.attention import Attention
from kernelgen.ops.cache_write import CacheWrite
from kernelgen.ops.choose_experts import ChooseExperts
from kernelgen.ops.delta_scan import DeltaScan
from kernelgen.ops.depth_mix import DepthMix
from kernelgen.ops.embed import Embed
from kernelgen.ops.expert_linear import ExpertLinear
from kernelgen.ops.head_linear import HeadLinear
from kernelgen.ops.latent_attention import LatentAttention
from kernelgen.ops.latent_write import LatentWrite
from kernelgen.ops.linear import Linear
from kernelgen.ops.map_experts import MapExperts
from kernelgen.ops.pointwise import Pointwise
from kernelgen.ops.reduce import RowReduce
from kernelgen.ops.rope import Rope
from kernelgen.ops.sample import Sample
from kernelgen.ops.select import SelectRows
from kernelgen.ops.short_conv import ShortConv
from kernelgen.ops.sum_experts import SumExperts
from kernelgen.ops.view import View
from kernelgen.ops.weigh_experts import WeighExperts

__all__ = [
    "Attention",
    "CacheWrite",
    "ChooseExperts",
    "DeltaScan",
    "DepthMix",
    "Embed",
    "ExpertLinear",
    "HeadLinear",
    "LatentAttention",
    "LatentWrite",
    "Linear",
    "MapExperts",
    "Pointwise",
    "Rope",
    "RowReduce",
    "Sample",
    "SelectRows",
    "ShortConv",
    "SumExperts",
    "View",
    "WeighExperts",
]
