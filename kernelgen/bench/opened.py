"""Owns the build on its device: chosen, checked, made ready with exactly the cache asked for."""

from __future__ import annotations

import gc
import time
from typing import Any

from kernelgen.bench.built import PAGE_TOKENS, read_built
from kernelgen.bench.case import check_cases
from kernelgen.bench.machine import Clocks, Nvml, machine
from kernelgen.bench.options import CUBLAS, SDPA, Options
from kernelgen.bench.peers import ADAPTERS
from kernelgen.bench.report import Setup
from kernelgen.core.errors import UsageError
from kernelgen.hw import device_of_driver_name

BANDWIDTH_SECONDS = 0.4
MOST_STEP_TOKENS = 8192


class Opened:
    """A build whose target fits a device of this machine.

    Raises `UsageError` for cases that it cannot run, and the runtime's own errors: no GPU, the
    wrong one, no build.
    """

    def __init__(self, options: Options) -> None:
        from kernelgen_runtime.artifact.open import open_artifact
        from kernelgen_runtime.device.choose import choose

        self._options = options
        self._artifact = open_artifact(options.build)
        self._choice = choose(self._artifact.manifests, options.device)
        self._manifest = self._choice.manifest
        self.built = read_built(options.build, self._manifest.target)
        check_cases(options.cases, self.built.decode_sizes, self._manifest.max_sequence_tokens)
        self.gpu: Any = self._choice.gpu
        _refuse_idle(options, self.gpu is not None)
        self._nvml = Nvml(_uuid(self.gpu.index)) if self.gpu else None
        self._machine = machine(
            self.gpu.name if self.gpu else "",
            self._nvml.driver if self._nvml else None,
            self._spec_gb_s(),
        )

    @property
    def place(self) -> str:
        """What `--device` calls it."""
        return f"cuda:{self.gpu.index}" if self.gpu else "cpu"

    def ready(self, batch: int, length: int, graphs: bool = True) -> tuple[Any, float]:
        """The model with a cache for that many requests at once, and the seconds that took."""
        from kernelgen_runtime.llm import LLM

        most = self._manifest.args.max_tokens
        start = time.perf_counter()
        llm = LLM(
            self._artifact,
            self._options.weights,
            device=self._choice,
            max_num_seqs=batch,
            max_num_batched_tokens=min(MOST_STEP_TOKENS, most) if self.gpu else None,
            max_model_len=length,
            kv_cache_memory_bytes=self._cache_bytes(batch, length),
            threads=self._options.threads,
            graphs=graphs,
            enable_prefix_caching=False,  # every round computes the same prompts
        )
        return llm, time.perf_counter() - start

    def setup(self, llm: Any, ready: float) -> Setup:
        """What holds for the run. Reading is measured, and on a GPU clocks rise by it."""
        options = self._options
        rates = [of.read_bandwidth(BANDWIDTH_SECONDS) for of in (llm.device, llm.library)]
        ceiling = max((rate for rate in rates if rate), default=None)
        return Setup(
            build=options.build.name,
            model=self.built.name,
            target=self.built.target,
            isa=llm.library.isa,
            dtype=self.built.dtype,
            weights=options.weights,
            threads=None if self.gpu else llm.threads,
            machine=self._machine,
            ready_s=round(ready, 3),
            ceiling_gb_s=round(ceiling, 1) if ceiling else None,
            command=options.repeat(options.cases),
        )

    def clocks(self) -> Clocks:
        """Those of this moment."""
        return self._nvml.clocks() if self._nvml else Clocks()

    def free(self) -> None:
        """Give the device back what nothing holds any more."""
        gc.collect()
        if self.gpu:
            import torch

            torch.cuda.empty_cache()

    def _spec_gb_s(self) -> float | None:
        device = device_of_driver_name(self.gpu.name) if self.gpu else None
        return device.spec_gb_s if device else None

    def _cache_bytes(self, batch: int, length: int) -> int:
        """Bytes that `batch` requests of `length` tokens take at once, with the pages to spare
        that the scheduler asks for.
        """
        groups = len(self._manifest.cache.groups)
        pages = groups * (1 + -(-length // PAGE_TOKENS)) + 1
        return int((1 + batch * pages) * self._manifest.cache.page_bytes)


def _refuse_idle(options: Options, on_gpu: bool) -> None:
    """`UsageError` for what was asked and would do nothing on this device."""
    idle = [name for name in options.demanded if name in (CUBLAS, SDPA) and not on_gpu]
    if idle:
        raise UsageError(
            f"{', '.join(idle)}: measured on a GPU only, and this build runs on the CPU",
            where="--baseline",
            allowed=f"none, {', '.join(ADAPTERS)}",
        )
    if options.threads is not None and on_gpu:
        raise UsageError("is for the CPU, and this build runs on a GPU", where="--threads")


def _uuid(index: int) -> str:
    import torch

    return str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
