"""Small Triton kernels as a generator would print them: add, gemv, cache insert, prepare."""

from __future__ import annotations

from kernelgen.codegen.cuda.unit import Argument, TritonUnit

SMS = (80, 89, 90, 100, 103, 120)
HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"

ADD = (
    HEAD
    + '''def add(a, b, y, N: tl.constexpr, BLOCK: tl.constexpr):
    """y = a + b"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    total = tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside)
    tl.store(y + at, total, mask=inside)
'''
)

GEMV = (
    HEAD
    + '''def gemv(x, w, y, args, N: tl.constexpr, K: tl.constexpr, OUTPUTS: tl.constexpr,
         DEPTH: tl.constexpr, PDL: tl.constexpr, INTERPRET: tl.constexpr):
    """y[N] = w[N, K] · x[K]; the first weights are on their way before the row is waited for"""
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, DEPTH)
    rows = w + n[:, None] * K
    inside = (n < N)[:, None]
    tile = tl.load(rows + k[None, :], mask=inside & (k < K)[None, :], other=0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros((OUTPUTS,), tl.float32)
    if tl.load(args) > 0:
        for start in range(0, K, DEPTH):
            row = tl.load(x + start + k, mask=start + k < K, other=0).to(tl.float32)
            total += tl.sum(tile.to(tl.float32) * row[None, :], 1)
            after = start + DEPTH + k
            tile = tl.load(rows + after[None, :], mask=inside & (after < K)[None, :], other=0)
    tl.store(y + n, total.to(tl.bfloat16), mask=n < N)
'''
)

INSERT = (
    HEAD
    + '''def insert(key, cache, layer_offset, table, rows, width, PAGE_BYTES: tl.constexpr,
           BLOCK: tl.constexpr, PDL: tl.constexpr):
    """writes a row of keys to its place in the first page of the request"""
    at = tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
    page = tl.load(table + tl.load(rows + tl.program_id(0))).to(tl.int64)
    place = cache + page * PAGE_BYTES + layer_offset
    tl.store(place.to(tl.pointer_type(tl.bfloat16)) + at, tl.load(key + at, mask=at < width),
             mask=at < width)
'''
)


PREPARE = (
    HEAD
    + '''def prepare(args, last_sampled, token_ids, positions, rows, BLOCK: tl.constexpr,
            PDL: tl.constexpr):
    """stands for the launch that opens a step"""
    if PDL:
        tl.extra.cuda.gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < tl.load(args)
    tl.store(token_ids + at, tl.load(last_sampled + at, mask=there, other=-1))
    tl.store(positions + at, at)
    tl.store(rows + at, tl.where(there, at, -1))
'''
)


def pointers(*names: str, of: str = "*bf16") -> tuple[Argument, ...]:
    """Arguments that are aligned pointers of one type."""
    return tuple(Argument(name, of, 16) for name in names)


def add(n: int = 3000, name: str = "add") -> TritonUnit:
    """Adds two rows of n elements."""
    constants = (("N", n), ("BLOCK", 1024))
    return TritonUnit(name, ADD, "add", pointers("a", "b", "y"), constants)


def gemv(n: int = 250, k: int = 1000, outputs: int = 4, name: str = "gemv") -> TritonUnit:
    """A product of one row that starts before its predecessor has ended."""
    return TritonUnit(
        name,
        GEMV,
        "gemv",
        (*pointers("x", "w", "y"), Argument("args", "*i32", 16)),
        (("N", n), ("K", k), ("OUTPUTS", outputs), ("DEPTH", 512)),
        pdl=True,
        tile=f"outputs {outputs}, depth 512, warps 4",
    )


def insert() -> TritonUnit:
    """Writes one row into a page of the cache."""
    return TritonUnit(
        "insert",
        INSERT,
        "insert",
        (
            *pointers("key"),
            Argument("cache", "*u8", 16),
            Argument("layer_offset", "i64", 16),
            *pointers("table", "rows", of="*i32"),
            Argument("width", "i32"),
        ),
        (("PAGE_BYTES", 8192), ("BLOCK", 128)),
        num_warps=1,
        pdl=True,
    )


def prepare() -> TritonUnit:
    """Writes the step values."""
    names = ("args", "last_sampled", "token_ids", "positions", "rows")
    signature = pointers(*names, of="*i32")
    return TritonUnit("prepare", PREPARE, "prepare", signature, (("BLOCK", 64),), pdl=True)
