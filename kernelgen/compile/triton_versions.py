"""Owns every call into Triton, and with it what differs from 3.6 to 3.9; only workers import it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen.codegen.cuda.image import BoxImage, KernelImage
from kernelgen.codegen.cuda.unit import GIVEN, TritonUnit
from kernelgen.core.digest import digest_bytes

_WARP = 32
_FIRST_WITH_FLOAT8 = 89
_FIRST_WITH_DESCRIPTORS = 90
_DESCRIPTOR = (128, 4, 4, 8, 8)
"""bytes of what a descriptor becomes: the driver's map, then sides and strides; so from 3.6 to 3.9
on sm_90 and later (before, and only there, versions differ)"""
_HIDDEN = (8, 8)
"""pointers to scratch and profile, behind all others"""
_DRIVER_ELEMENTS = {8: 10, 9: 8, 10: 9}
"""Triton's numbers of element types that are not CUtensorMapDataType's"""
_LINE_BITS = {"bf16": 16, "fp16": 16, "fp32": 32}
"""of an element in lines of 128 bytes"""
_PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.[a-z](\d+)[^,\n]*?(?:\[(\d+)\])?,?\n")
_USAGE = {
    "registers": r"Used (\d+) registers",
    "stack": r"(\d+) bytes stack frame",
    "stores": r"(\d+) bytes spill stores",
    "loads": r"(\d+) bytes spill loads",
}


@dataclass(frozen=True)
class Built:
    """A compiled kernel: machine code, its readable form, and the facts of both."""

    cubin: bytes
    ptx: str
    image: KernelImage


def load_function(path: Path, name: str) -> Any:
    """The @triton.jit function `name` of the file at `path`; Triton reads its source from there."""
    from triton.runtime import JITFunction

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not isinstance(function, JITFunction):
        raise ValueError(f"the file has no @triton.jit function {name}")
    return function


def build(function: Any, unit: TritonUnit, sm: int) -> Built:
    """Compile a function for `sm` as `unit` says; never asks for a driver or a device."""
    import triton
    from triton.backends.compiler import GPUTarget

    if sm < _FIRST_WITH_DESCRIPTORS and any(a.block for a in unit.signature):
        raise ValueError(f"{unit.name}: sm_{sm} has no descriptors")
    names = list(function.arg_names)
    constants = _constants(names, unit, sm)
    language, types = _language(function, unit)
    attrs = {
        (names.index(a.name),): [["tt.divisibility", a.divisible]]
        for a in unit.signature
        if a.divisible > 1
    }
    source = language(
        fn=function,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs=constants,
        attrs=attrs,
    )
    # The target must be given, else Triton asks for a driver; 3.6 wants the number as an int.
    target = GPUTarget("cuda", sm, _WARP)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        made = triton.compile(source, target=target, options=_options(unit, sm))
    _check_parameters(made.asm["ptx"], unit)
    image = _image(made, unit, sm, printed.getvalue())
    return Built(made.asm["cubin"], made.asm["ptx"], image)


def _language(function: Any, unit: TritonUnit) -> tuple[Any, dict[str, str]]:
    """What makes a source of the function, and the types of its arguments. A function that lays out
    shared memory itself (Gluon) is told in which lines descriptors copy into it.
    """
    from triton.compiler import ASTSource

    types = {a.name: a.type for a in unit.signature}
    if not getattr(function, "is_gluon", lambda: False)():
        return ASTSource, types
    from triton.experimental.gluon import language
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.language.nvidia.hopper import tma

    if not hasattr(language, "thread_barrier"):  # so it is called up to 3.6
        language.thread_barrier = language.barrier
    if hasattr(tma, "async_load"):  # so it is called from 3.8 on; 3.9 knows no other name
        tma.async_copy_global_to_shared = tma.async_load
    for a in unit.signature:
        if a.block:
            bits = _LINE_BITS[a.type[len("tensordesc<") : a.type.index("[")]]
            types[a.name] = f"{a.type[:-1]},{NVMMASharedLayout(128, bits, 2)!r}>"
    return GluonASTSource, types


def _constants(names: list[str], unit: TritonUnit, sm: int) -> dict[str, Any]:
    """Values of all constexprs; every argument of the function must be spoken for exactly once."""
    given = {
        "PDL": unit.pdl_on(sm),
        "INTERPRET": False,
        "FLOAT8": sm >= _FIRST_WITH_FLOAT8,
    }
    constants: dict[str, Any] = dict(unit.constants)
    constants |= {name: given[name] for name in GIVEN if name in names}
    typed = [a.name for a in unit.signature]
    missing = [n for n in names if n not in constants and n not in typed]
    unknown = [n for n in (*typed, *constants) if n not in names]
    if missing or unknown:
        what = [f"{n} has neither type nor value" for n in missing]
        what += [f"{n} is no argument" for n in unknown]
        raise ValueError(f"{unit.function}: {', '.join(what)}")
    ordered = [n for n in names if n in typed]
    if ordered != typed:
        raise ValueError(f"{unit.function} takes {', '.join(ordered)}, not {', '.join(typed)}")
    return constants


def _options(unit: TritonUnit, sm: int) -> dict[str, Any]:
    """Compiler options; fusing multiply and add is the default of some versions only."""
    from triton.backends.nvidia.compiler import CUDAOptions

    options: dict[str, Any] = {
        "num_warps": unit.num_warps,
        "num_stages": unit.num_stages,
        "launch_pdl": unit.pdl_on(sm),
        "enable_fp_fusion": True,
    } | dict(unit.options)
    known = CUDAOptions.__dataclass_fields__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"this Triton has no option {', '.join(unknown)}")
    return options


def _image(made: Any, unit: TritonUnit, sm: int, log: str) -> KernelImage:
    import triton

    facts = made.metadata
    if facts.num_ctas != 1:
        raise ValueError(f"{unit.name}: Triton's own clusters have no launcher")
    usage = _usage(log)
    return KernelImage(
        symbol=facts.name,
        sm=sm,
        arguments=tuple(a.type for a in unit.signature),
        threads=facts.num_warps * _WARP,
        shared_bytes=facts.shared + unit.exchange_bytes,
        pdl=unit.pdl_on(sm),
        cooperative=bool(facts.launch_cooperative_grid),
        registers=usage["registers"],
        stack_bytes=usage["stack"],
        spill_bytes=usage["stores"] + usage["loads"],
        tensor_columns=facts.tmem_size or 0,
        cluster=unit.cluster,
        scratch_bytes=facts.global_scratch_size + facts.profile_scratch_size,
        ptx_sha256=digest_bytes(made.asm["ptx"]),
        triton=triton.__version__,
        assembler=_assembler(sm),
        boxes=tuple(_box(unit, meta) for meta in facts.tensordesc_meta or ()),
    )


def _box(unit: TritonUnit, meta: dict[str, Any]) -> BoxImage:
    if meta["fp4_padded"] or len(meta["block_size"]) != 2:
        raise ValueError(f"{unit.name}: no launcher for a descriptor like {meta}")
    element = _DRIVER_ELEMENTS.get(meta["elem_type"], meta["elem_type"])
    rows, columns = meta["block_size"]
    return BoxImage(element, meta["swizzle"], rows, columns)


def _check_parameters(ptx: str, unit: TritonUnit) -> None:
    """The code takes what the launcher passes: as many parameters, of the same widths."""
    wanted: list[int] = []
    for argument in unit.signature:
        wanted += _DESCRIPTOR if argument.block else [_width(argument.type)]
    wanted += _HIDDEN
    entry = ptx[ptx.index(".entry") :]
    found = [
        int(length) if length else int(bits) // 8
        for bits, length in _PARAMETER.findall(entry[: entry.index(")")])
    ]
    if found != wanted:
        raise ValueError(f"{unit.name} takes parameters of {found} bytes, launches pass {wanted}")


def _width(type_: str) -> int:
    """Bytes of an argument: a pointer, or a number whose type names its bits."""
    if type_.startswith("*"):
        return 8
    return max(8, int(re.findall(r"\d+", type_)[0])) // 8


def _usage(log: str) -> dict[str, int]:
    """What the assembler reports of the kernel, which is the only function in its file."""
    found: dict[str, int] = {}
    for name, pattern in _USAGE.items():
        numbers = [int(n) for n in re.findall(pattern, log)]
        if not numbers:
            raise ValueError(f"ptxas reports no {name}: {log.strip()[-300:]!r}")
        found[name] = max(numbers)
    return found


def _assembler(sm: int) -> str:
    from triton.backends.nvidia.compiler import get_ptxas_version

    match = re.search(r"release (\S+),", get_ptxas_version(sm))
    return f"ptxas {match[1]}" if match else "ptxas"
