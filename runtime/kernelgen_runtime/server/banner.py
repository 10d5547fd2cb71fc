"""Owns what a server says when it starts, in the order in which it becomes known."""

import time
from collections.abc import Iterator

from .options import ServeOptions
from .service import Service
from .wire import Facts


def banner(options: ServeOptions, url: str) -> Iterator[str]:
    """Yield what is known before anything is loaded."""
    yield f"serving {options.engine.artifact}, weights {options.engine.weights}"
    if options.given:
        yield f"options: {', '.join(options.given)}"
    yield f"{url} is bound; /health answers 503 until the model is ready"


def ready_lines(service: Service, facts: Facts, url: str, started: float) -> Iterator[str]:
    """Yield what the engine has become."""
    where = facts.device if facts.threads is None else f"{facts.device}, {facts.threads} threads"
    yield (
        f"build {facts.name} {facts.version}: {facts.architecture}, {facts.dtype}, "
        f"{facts.target} on {where}, up to {facts.max_model_len} tokens"
    )
    for line in facts.plans:
        phase, _, sizes = line.partition(" ")
        yield f"plans of {phase} for sizes {sizes}"
    for line in facts.notes:
        yield line
    yield f"weights {facts.weight_bytes / 1e9:.2f} GB in {facts.weight_seconds:.2f} s"
    yield (
        f"cache {facts.cache_bytes / 1e9:.2f} GB: {facts.pages * facts.page_tokens} tokens, "
        f"{facts.concurrency:.1f} requests of full length"
    )
    front = service.front
    if front is not None and front.has_template:
        tools, reasoning = front.tool_format or "none", front.reasoning_format or "none"
        yield f"chat: tool calls {tools}, reasoning {reasoning}"
    names = ", ".join(service.names)
    yield (
        f"engine ready in {facts.seconds:.2f} s ({facts.import_seconds:.2f} s of imports), "
        f"{time.perf_counter() - started:.2f} s after process start"
    )
    yield f"ready: {url} as {names}"
