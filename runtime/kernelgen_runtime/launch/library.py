"""Owns the compiled library behind tvm-ffi, and the small protocol the rest of the runtime sees."""

import shutil
import tempfile
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import torch

from ..artifact.isa import choose_here
from ..artifact.manifest import Library, Manifest
from ..artifact.open import Artifact
from ..artifact.relations import ABI
from ..errors import ArtifactError, LaunchError, shown


class StepLibrary(Protocol):
    """What a library does for the runtime; tests put a fake in its place."""

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        """Hand over one buffer; the caller keeps it alive."""

    def step(self, plan_id: int, args: torch.Tensor) -> None:
        """Run one step; on a GPU, give it to the current stream."""

    def refine(self, plan_id: int, args: torch.Tensor) -> None:
        """Choose again for rows with rules, behind the step of the same arguments."""

    def keep_masks(self, plan_id: int, args: torch.Tensor) -> None:
        """List what the rows that ask for it chose from, behind `step` and `refine`."""

    def logprobs(self, plan_id: int, args: torch.Tensor) -> None:
        """Tell log-probabilities to the rows that ask, behind `step` and `refine`."""

    def load(self, plan_id: int) -> None:
        """Get everything ready that a step of the plan needs, so that it may be captured."""

    def set_threads(self, count: int) -> None:
        """Set the worker threads of the steps that follow."""

    def read_bandwidth(self, seconds: float) -> float | None:
        """Measure the read bandwidth in GB/s for about `seconds`; None where it cannot."""


_LOADED: "WeakValueDictionary[Path, CompiledLibrary]" = WeakValueDictionary()


class CompiledLibrary:
    """The library of a manifest: the best one for this processor, or the one for a GPU.

    Raises ArtifactError if it is not one, UnsupportedCpuError where no CPU library runs here.
    """

    def __init__(self, artifact: Artifact, manifest: Manifest) -> None:
        import tvm_ffi

        library = manifest.libraries[0] if manifest.sm else choose_here(manifest.libraries)
        self.path = artifact.library_path(library)
        self.isa = library.isa
        loaded = self._own_copy()
        try:
            module = tvm_ffi.load_module(str(loaded))
            found = (module["kg_abi"](), str(module["kg_isa"]()))
            self._bind, self._step = module["bind"], module["step"]
        except (RuntimeError, AttributeError, OSError) as error:
            reason = shown(str(error).strip().splitlines()[-1] if str(error) else "", 200)
            raise ArtifactError(f"{self.path}: not a library of kernelgen ({reason})") from None
        self._module = module
        self._check(found, library)

    def _check(self, found: tuple[int, str], library: Library) -> None:
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

    def refine(self, plan_id: int, args: torch.Tensor) -> None:
        """Choose again for rows with rules. Raises LaunchError with the library's own words."""
        self._after("refine", plan_id, args)

    def keep_masks(self, plan_id: int, args: torch.Tensor) -> None:
        """List what rows chose from. Raises LaunchError with the library's own words."""
        self._after("keep_masks", plan_id, args)

    def logprobs(self, plan_id: int, args: torch.Tensor) -> None:
        """Tell log-probabilities. Raises LaunchError with the library's own words."""
        self._after("logprobs", plan_id, args)

    def _after(self, name: str, plan_id: int, args: torch.Tensor) -> None:
        try:
            self._module[name](plan_id, args)
        except (AttributeError, ValueError, TypeError, RuntimeError) as error:
            raise LaunchError(f"{self.path}: {name} of plan {plan_id}: {error}") from None

    def load(self, plan_id: int) -> None:
        """Load the kernels of a plan, where there are any to load. Raises LaunchError."""
        try:
            self._module["load"](plan_id)
        except AttributeError:
            return
        except (ValueError, TypeError, RuntimeError) as error:
            raise LaunchError(f"{self.path}: loading plan {plan_id}: {error}") from None

    def set_threads(self, count: int) -> None:
        """Set the worker threads of the steps that follow, where the library has any."""
        try:
            self._module["kg_set_threads"](count)
        except AttributeError:
            return

    def read_bandwidth(self, seconds: float) -> float | None:
        """Measure the read bandwidth in GB/s; None where the library has no such function."""
        try:
            return float(self._module["read_bandwidth"](seconds))
        except AttributeError:
            return None
