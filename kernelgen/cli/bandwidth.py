"""Owns measuring the read bandwidth of this machine with the same kernel that libraries carry."""

from __future__ import annotations

import ctypes

from kernelgen.cli.machine import Finding, best_isa
from kernelgen.compile.cpp import CppSource, compile_cpp
from kernelgen.compile.jobs import default_jobs
from kernelgen.compile.store import Store
from kernelgen.core.errors import KernelgenError, UnsupportedError
from kernelgen.core.resources import templates_dir

SECONDS = 0.5
_SOURCE = """#include "bandwidth.h"

extern "C" __attribute__((visibility("default"))) double measure(int threads, double seconds) {
  static kg::Team team;
  team.resize(threads);
  return kg::read_bandwidth(team, seconds);
}
"""


def bandwidth_finding() -> Finding:
    """The measured bandwidth, or why it could not be measured."""
    threads = default_jobs()
    try:
        found = read_bandwidth(threads, SECONDS)
    except KernelgenError as error:
        # Without a compiler or AVX2 another finding has said so; a kernel that fails is news.
        ok = None if isinstance(error, UnsupportedError) else False
        return Finding("processor", "read bandwidth", None, f"not measured: {error}", ok)
    text = f"{found:.1f} GB/s with {threads} threads"
    return Finding("processor", "read bandwidth", round(found, 2), text)


def read_bandwidth(threads: int, seconds: float) -> float:
    """10⁹ bytes a second that `threads` threads read together, measured for about `seconds`.

    Compiles the kernel once and keeps it in the cache. `KernelgenError` when it cannot.
    """
    isa = best_isa()
    if isa is None:
        raise UnsupportedError("this processor has no AVX2")
    folder = templates_dir() / "cpp" / "lib"
    headers = {path.name: path.read_text() for path in sorted(folder.glob("*.h"))}
    store = Store()
    with store.session():
        source = CppSource("bandwidth.cpp", _SOURCE)
        library = compile_cpp([source], isas=[isa], store=store, headers=headers)[0]
        measure = ctypes.CDLL(str(library.path)).measure
    measure.argtypes, measure.restype = (ctypes.c_int, ctypes.c_double), ctypes.c_double
    return float(measure(threads, seconds))
