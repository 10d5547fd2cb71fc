"""Owns the compiled library behind tvm-ffi, and the small protocol the rest of the runtime sees."""

import shutil
import tempfile
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import torch

from ..artifact.isa import choose_here
from ..artifact.open import Artifact
from ..artifact.read import ABI
from ..errors import ArtifactError, LaunchError, shown


class StepLibrary(Protocol):
    """What a library does for the runtime; tests put a fake in its place."""

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        """Hand over one buffer; the caller keeps it alive."""

    def step(self, plan_id: int, args: torch.Tensor) -> None:
        """Run one step."""

    def set_threads(self, count: int) -> None:
        """Set the worker threads of the steps that follow."""

    def read_bandwidth(self, seconds: float) -> float | None:
        """Measure the read bandwidth in GB/s for about `seconds`; None where it cannot."""


_LOADED: "WeakValueDictionary[Path, CompiledLibrary]" = WeakValueDictionary()


class CompiledLibrary:
    """The best library of an artifact for this processor. Raises ArtifactError if it is not one."""

    def __init__(self, artifact: Artifact) -> None:
        import tvm_ffi

        library = choose_here(artifact.manifest.libraries)
        self.path = artifact.library_path(library)
        self.isa = library.isa
        loaded = self._own_copy()
        try:
            module = tvm_ffi.load_module(str(loaded))
            functions = {name: module[name] for name in ("kg_abi", "kg_isa", "kg_set_threads")}
            self._bind, self._step = module["bind"], module["step"]
        except (RuntimeError, AttributeError, OSError) as error:
            reason = shown(str(error).strip().splitlines()[-1] if str(error) else "", 200)
            raise ArtifactError(f"{self.path}: not a library of kernelgen ({reason})") from None
        self._module = module
        self._set_threads = functions["kg_set_threads"]
        found = (functions["kg_abi"](), str(functions["kg_isa"]()))
        if found != (ABI, library.isa):
            raise ArtifactError(
                f"{self.path}: abi and isa are {found}, manifest.json says {(ABI, library.isa)}"
            )

    def _own_copy(self) -> Path:
        """Return a file to load that no other object of this process uses.

        A library holds one set of bound buffers, and the system loads a file once: a second model
        from the same file would silently take the place of the first.
        """
        key = self.path.resolve()
        if key not in _LOADED:
            _LOADED[key] = self
            return self.path
        self._copy = tempfile.TemporaryDirectory(prefix="kernelgen-")
        return Path(shutil.copy(self.path, self._copy.name))

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        """Hand over one buffer. Raises LaunchError with the library's own words."""
        try:
            self._bind(name, tensor)
        except (ValueError, TypeError, RuntimeError) as error:
            raise LaunchError(f"{self.path}: bind {name}: {error}") from None

    def step(self, plan_id: int, args: torch.Tensor) -> None:
        """Run one step. Raises LaunchError with the library's own words."""
        try:
            self._step(plan_id, args)
        except (ValueError, TypeError, RuntimeError) as error:
            raise LaunchError(f"{self.path}: step of plan {plan_id}: {error}") from None

    def set_threads(self, count: int) -> None:
        """Set the worker threads of the steps that follow."""
        self._set_threads(count)

    def read_bandwidth(self, seconds: float) -> float | None:
        """Measure the read bandwidth in GB/s; None where the library has no such function."""
        try:
            return float(self._module["read_bandwidth"](seconds))
        except AttributeError:
            return None
