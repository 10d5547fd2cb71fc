"""A GPU step program of two layers in two cache groups, planned by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gpu_toy_kernels as toy

from kernelgen.codegen.cuda.host import StepProgram, cuda_headers, cuda_step
from kernelgen.codegen.cuda.image import KernelImage
from kernelgen.codegen.cuda.launches import (
    BlockTable,
    Constant,
    GpuKernel,
    GpuPass,
    LayerOffset,
    Operand,
    Pointer,
    launch_key,
)
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.step_args import args_layout
from kernelgen.codegen.weights import BoundWeight
from kernelgen.compile.cpp import Blob, CppSource, compile_cpp
from kernelgen.compile.store import Store
from kernelgen.ir.types import Sizes
from kernelgen.planner.caches import CacheGroup, CacheSchema, LayerPlace
from kernelgen.planner.family import Price
from kernelgen.planner.plan import Kernel, Launch, Plan
from kernelgen.planner.plan import Operand as Given

N, K = 250, 1000
VOCABULARY, PAGE_BYTES = 32, 8192
CACHE = CacheSchema(
    PAGE_BYTES,
    (CacheGroup("full_0", None, (0,)), CacheGroup("window20_0", 20, (1,))),
    {0: LayerPlace(0, 0), 1: LayerPlace(1, 4096)},
)
ARGS = args_layout(CACHE, 64, 8, 256)
PRICE = Price(bytes=0, flops=0, us=1.0, choice={"outputs": 4}, verdict="modelled")


def _kernel(name: str, *signature: str) -> Kernel:
    region = SimpleNamespace(inputs=(), outputs=())  # nothing that is counted in logit rows
    family = SimpleNamespace(name=name)
    return Kernel(name, cast(Any, SimpleNamespace(region=region, family=family)), signature)


GEMV = _kernel("gemv", "x", "w", "y")
INSERT = _kernel("insert", "key", "cache", "rows")
SPLIT = _kernel("split_add", "x", "w", "y", "scratch", "counters")
KERNELS = {
    "gemv": GpuKernel(
        (
            GpuPass(
                toy.gemv(N, K),
                (Operand(0), Operand(1), Operand(2), Pointer.ARGS),
                lambda sizes: (63, sizes.tokens, 1),
            ),
        )
    ),
    "insert": GpuKernel(
        (
            GpuPass(
                toy.insert(),
                (
                    Operand(0), Operand(1), LayerOffset(), BlockTable(), Operand(2),
                    Constant(lambda sizes: 100 + sizes.tokens),
                ),
                lambda sizes: (sizes.tokens, 1, 1),
            ),
        )
    ),
    "split_add": GpuKernel(
        (
            GpuPass(
                toy.gemv(N, K, name="split_gemv"),
                (Operand(0), Operand(1), Pointer.SCRATCH, Pointer.ARGS),
                lambda sizes: (63, 1, 1),
            ),
            GpuPass(
                toy.add(N, name="merge"),
                (Operand(3), Operand(0), Operand(2)),
                lambda sizes: (1 if sizes.tokens < 64 else 0, 1, 1),
            ),
        )
    ),
}  # fmt: skip
PREPARE = GpuKernel(
    (
        GpuPass(
            toy.prepare(),
            (
                Pointer.ARGS, Pointer.LAST_SAMPLED,
                Pointer.TOKEN_IDS, Pointer.POSITIONS, Pointer.ROWS,
            ),
            lambda sizes: (-(-sizes.tokens // 64), 1, 1),
        ),
    )
)  # fmt: skip


def plan(phase: str, size: int, shift: int = 0) -> Plan:
    """Two layers: gemv of the seat at 0 into a buffer, its insert, and a two-pass kernel back."""
    launches = []
    for layer in (0, 1):
        x, y = Given("buffer", "x", shift), Given("buffer", "y", 4096 + shift)
        w = Given("weight", "w")
        launches += [
            Launch(GEMV, layer, (x, w, y), PRICE),
            Launch(INSERT, layer, (y, Given("state", "cache"), Given("step", "rows")), PRICE),
            Launch(
                SPLIT,
                layer,
                (y, w, x, Given("buffer", "scratch.2", 8192), Given("bound", "counters")),
                PRICE,
            ),
        ]
    head = (Given("buffer", "x", shift), Given("weight", "head"), Given("bound", "logits"))
    launches.append(Launch(GEMV, None, head, PRICE))
    return Plan(
        graph=cast(Any, SimpleNamespace(name="toy")),
        target="sm_90:h200",
        phase=phase,
        size=size,
        sizes=Sizes(size, 1 if phase == "mixed" else size, 64, min(size, 8)),
        kernels=(GEMV, INSERT, SPLIT),
        launches=tuple(launches),
        fusions=(),
        workspace_bytes=16384,
        counters=3,
        candidates=1,
        floor_us=1.0,
        floor_bytes=1,
    )


def program(sm: int = 90) -> StepProgram:
    """Decode plans of 1 and 4 requests, a mixed one of 64 tokens."""
    weights = [(f"layers.{i}.w", (N, K)) for i in (0, 1)] + [("head", (N, K))]
    return StepProgram(
        sm=sm,
        plans=(plan("decode", 1), plan("decode", 4), plan("mixed", 64, shift=512)),
        kernels={launch_key(k, PRICE.choice): KERNELS[k.name] for k in (GEMV, INSERT, SPLIT)},
        prepare=PREPARE,
        weights=tuple(BoundWeight(n, "bfloat16", s, s, "rows") for n, s in weights),
        cache=CACHE,
        args=ARGS,
        vocabulary=VOCABULARY,
    )


def made_up_image(unit: TritonUnit, sm: int, *, shared_bytes: int = 1024) -> KernelImage:
    """What a compiler would say of a unit."""
    return KernelImage(
        symbol=unit.function,
        sm=sm,
        arguments=tuple(a.type for a in unit.signature),
        threads=32 * unit.num_warps,
        shared_bytes=shared_bytes,
        pdl=unit.pdl_on(sm),
        cooperative=False,
        registers=40,
        stack_bytes=0,
        spill_bytes=0,
        tensor_columns=0,
        cluster=1,
        scratch_bytes=0,
        ptx_sha256="",
        triton="0.0",
        assembler="ptxas 12.8",
    )


def link(
    program: StepProgram,
    images: Mapping[str, KernelImage],
    cubins: Mapping[str, Path],
    store: Store,
) -> Path:
    """The library of a step program."""
    blobs = tuple(Blob(f"{program.folder}/{name}.cubin", path) for name, path in cubins.items())
    sources = [CppSource(p, t, blobs=blobs) for p, t in cuda_step(program, images).items()]
    made = compile_cpp(sources, isas=[program.folder], store=store, headers=cuda_headers(), jobs=1)
    return made[0].path


def tensor(address: int, shape: list[int], dtype: str, **more: Any) -> dict[str, Any]:
    """A tensor at a made-up address, for a command."""
    return {"address": address, "shape": shape, "dtype": dtype, **more}


ADDRESS = {
    "layers.0.w": 1 << 20,
    "layers.1.w": 2 << 20,
    "head": 3 << 20,
    "logits": 4 << 20,
    "sampled": 5 << 20,
    "cache": 6 << 20,
    "workspace": 7 << 20,
    "last_sampled": 8 << 20,
    "counters": 9 << 20,
    "args": 10 << 20,
}


def bind_all(**changed: dict[str, Any]) -> list[list[Any]]:
    """Commands that bind every buffer; `changed` replaces tensors by name."""
    weights = {name: tensor(ADDRESS[name], [N, K], "bfloat16") for name in list(ADDRESS)[:3]}
    buffers = {
        "logits": tensor(ADDRESS["logits"], [8, VOCABULARY], "float32"),
        "sampled": tensor(ADDRESS["sampled"], [8], "int32"),
        "cache": tensor(ADDRESS["cache"], [10, PAGE_BYTES], "uint8"),
        "workspace": tensor(ADDRESS["workspace"], [1 << 16], "uint8"),
        "last_sampled": tensor(ADDRESS["last_sampled"], [16], "int32"),
        "counters": tensor(ADDRESS["counters"], [3], "int32"),
    }
    return [["bind", name, value] for name, value in (weights | buffers | changed).items()]


def args(**changed: Any) -> dict[str, Any]:
    """The step's arguments as a tensor."""
    return tensor(ADDRESS["args"], [ARGS.words], "int32") | changed
