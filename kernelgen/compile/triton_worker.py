"""Owns the process that imports Triton: compiles one kernel for each line that it is sent."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from kernelgen.codegen.cuda.image import KernelImage
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.core.decode import from_json
from kernelgen.core.jsonio import dumps, loads

MODULES = "modules"
"""folder of the files that kernels import, below the working directory"""


@dataclass(frozen=True)
class Order:
    """One kernel to compile, into `<key>.cubin` and `<key>.ptx` of the working directory."""

    key: str
    unit: TritonUnit


@dataclass(frozen=True)
class Answer:
    """The kernel's facts, or why there is none: `error` in few lines, `detail` in full."""

    image: KernelImage | None
    error: str = ""
    detail: str = ""


def main(group: str, reply_to: int) -> None:
    """Serve orders of stdin for the SM `group` until it closes."""
    sys.path.insert(0, str(Path.cwd() / MODULES))
    with os.fdopen(reply_to, "w") as replies:
        for line in sys.stdin:
            order = from_json(Order, loads(line, source="order"), source="order")
            replies.write(dumps(_answer(order, int(group))) + "\n")
            replies.flush()


def _answer(order: Order, sm: int) -> Answer:
    from kernelgen.compile.triton_versions import build, load_function

    path = Path.cwd() / f"{order.unit.name}_{order.key[:16]}.py"
    path.write_text(order.unit.text)
    try:
        built = build(load_function(path, order.unit.function), order.unit, sm)
    except Exception as error:  # of the kernel's text, of Triton or of ptxas: the build goes on
        return Answer(None, _summary(error), "".join(traceback.format_exception(error)))
    Path(f"{order.key}.cubin").write_bytes(built.cubin)
    Path(f"{order.key}.ptx").write_text(built.ptx)
    return Answer(built.image)


def _summary(error: BaseException) -> str:
    """The innermost cause (Triton wraps errors once for each call) with its line if known."""
    line = ""
    while True:
        number = getattr(getattr(error, "node", None), "lineno", None)
        line = f"line {number} of the function: " if number else line
        if error.__cause__ is None:
            break
        error = error.__cause__
    lines = [text for text in str(error).splitlines() if text.strip()] or [type(error).__name__]
    told = [text for text in lines if "error" in text.lower()] or lines[-1:]
    return line + "\n".join(told[:5])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
