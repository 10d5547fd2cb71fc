"""Owns calling a compiled library: binding what a step needs, and running one kernel by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelgen.core.errors import CheckFailed
from kernelgen.verify.tensors import Tensor

_STEP_NUMBERS = {"token_ids": 0, "positions": 1, "rows": 2, "logit_tokens": 3, "sampling": 4}
"""how the `kernel` function names step values"""
_FIRST_LAYER = 1000
"""added to a layer's number among those with a cache"""
PREPARE = "prepare"
"""the launch that opens every step on a GPU"""
ABI = 1


class KernelLibrary:
    """One loaded library. Whatever it is given is kept alive as long as this object."""

    def __init__(self, path: Path, isa: str) -> None:
        import tvm_ffi

        self._module = tvm_ffi.load_module(str(path))
        found = (int(self._module["kg_abi"]()), str(self._module["kg_isa"]()))
        if found != (ABI, isa):
            raise CheckFailed(f"abi and isa are {found}", where=str(path), allowed=f"{(ABI, isa)}")
        self._bound: dict[str, Tensor] = {}

    def bind(self, name: str, tensor: Tensor) -> None:
        """Hands over one buffer."""
        self._module["bind"](name, tensor)
        self._bound[name] = tensor

    def set_threads(self, count: int) -> None:
        """Worker threads of what follows; 0 where there are none."""
        if count:
            self._module["kg_set_threads"](count)

    def run(
        self, kernel: str, number: int, args: Tensor, operands: Sequence[Tensor | int | None]
    ) -> None:
        """Runs one kernel; ValueError and TypeError are the library's own refusals.

        `number`: on the CPU 1 for a decode step, else 0; on a GPU the plan whose tile it takes.
        """
        self._module["kernel"](kernel, number, args, *operands)

    def prepare(self, plan: int, args: Tensor) -> None:
        """On a GPU: writes the step values of a plan into the workspace, as every step starts."""
        self._module["kernel"](PREPARE, plan, args)

    def step(self, plan: int, args: Tensor) -> None:
        """Runs a whole step on what is bound."""
        self._module["step"](plan, args)

    @staticmethod
    def step_value(name: str) -> int:
        """What stands for a step value among the operands."""
        return _STEP_NUMBERS[name]

    @staticmethod
    def layer(number: int) -> int:
        """What stands for the cache of the layer with this number among those that have one."""
        return _FIRST_LAYER + number
