"""Owns the life of the engine process: make the model, say what it is, loop, say why it ends."""

import socket
import time

from ..artifact.manifest import PAGE_TOKENS
from ..artifact.open import open_artifact
from ..device.choose import choose
from ..device.cuda import CudaDevice
from ..errors import KernelgenRuntimeError, RequestError, shown
from ..llm import LLM
from ..memory.groups import peak_pages
from .build_facts import build_notes
from .engine_loop import EngineLoop
from .pipe import EnginePipe, PipeClosedError
from .wire import VERSION, Dead, EngineOptions, Facts, Ready, Start

SEQS_ON_CPU, SEQS_ON_GPU = 32, 256
LAST_WORDS_SECONDS = 2.0


def serve(connection: socket.socket, begun: float) -> int:
    """Load what the first message asks for and serve it; return the exit code.

    `begun` is when the process began, in seconds of `time.perf_counter`.
    """
    imported = time.perf_counter()
    pipe = EnginePipe(connection)
    try:
        llm = load(first_message(pipe).options)
        pipe.send(Ready(VERSION, facts(llm, begun, imported)))
        EngineLoop(llm, pipe).run()
    except PipeClosedError:
        return 0
    except KernelgenRuntimeError as error:
        return _die(pipe, str(error), error.exit_code)
    except MemoryError:
        return _die(pipe, "out of memory", 1)
    except Exception as error:
        _die(pipe, f"{type(error).__name__}: {shown(str(error), 300)}", 1)
        raise
    return 0


def first_message(pipe: EnginePipe) -> Start:
    """Return the message that a connection begins with. Raises RequestError for another."""
    while True:
        for message in pipe.receive(None):
            if not isinstance(message, Start) or message.version != VERSION:
                raise RequestError(f"the first message must be `start` of version {VERSION}")
            return message


def load(options: EngineOptions) -> LLM:
    """Return the model, ready to run. Raises a KernelgenRuntimeError for what cannot work."""
    artifact = open_artifact(options.artifact)
    choice = choose(artifact.manifests, options.device)
    usual = SEQS_ON_GPU if choice.gpu else SEQS_ON_CPU
    return LLM(
        artifact,
        options.weights,
        device=choice,
        max_num_seqs=options.max_num_seqs or min(usual, choice.manifest.args.max_rows),
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes,
        gpu_memory_utilization=options.gpu_memory_utilization,
        threads=options.threads,
        chunk_tokens=options.chunk_tokens,
        graphs=options.graphs,
        scheduling_policy=options.scheduling_policy,
        async_scheduling=options.async_scheduling,
        enable_prefix_caching=options.enable_prefix_caching,
        prefix_cache_retention_interval=options.prefix_cache_retention_interval,
        watermark=options.watermark,
    )


def facts(llm: LLM, begun: float, imported: float) -> Facts:
    """Return what the API process has to know of `llm`."""
    manifest, limits = llm.manifest, llm.limits
    sizes: dict[str, list[int]] = {}
    for plan in manifest.plans:
        sizes.setdefault(plan.phase, []).append(plan.size)
    one = peak_pages(
        manifest.cache.groups, max(1, limits.max_model_len - 1), limits.in_flight_tokens
    )
    return Facts(
        name=manifest.name,
        version=manifest.model.version,
        architecture=manifest.model.architecture,
        dtype=manifest.model.activation_dtype,
        target=manifest.target,
        device=llm.device.label,
        threads=None if isinstance(llm.device, CudaDevice) else llm.threads,
        vocab=manifest.vocab,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        pages=llm.pages - 1,
        page_tokens=PAGE_TOKENS,
        cache_bytes=llm.pages * manifest.cache.page_bytes,
        weight_bytes=llm.weights.bytes,
        weight_seconds=llm.weights.seconds,
        concurrency=(llm.pages - 1) / one,
        end_ids=list(llm.end_ids),
        plans=[f"{phase} {', '.join(map(str, sorted(sizes[phase])))}" for phase in sizes],
        notes=build_notes(llm.artifact.folder, manifest.target),
        seconds=time.perf_counter() - begun,
        import_seconds=imported - begun,
    )


def _die(pipe: EnginePipe, message: str, code: int) -> int:
    """Say why the process ends, as far as anybody listens."""
    try:
        pipe.send(Dead(message, code))
        pipe.finish(LAST_WORDS_SECONDS)
    except PipeClosedError:
        pass
    return code
