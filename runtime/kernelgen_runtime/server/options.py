"""Owns what a server is told to do, checked: everything that its parts need, and no more."""

import argparse
import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import shown
from ..sample.params import MAX_LOGPROBS
from ..sample.watermark import Watermark
from .arguments import ArgumentsError
from .flags import SECRET
from .wire import EngineOptions

API_KEY_VARIABLE = "KERNELGEN_API_KEY"
WATERMARK_VARIABLE = "KERNELGEN_WATERMARK_KEY"
_PREFIX = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")


@dataclass(frozen=True)
class ServeOptions:
    """Everything that `serve` was told. Keys are secrets: they are in no repr and no log."""

    engine: EngineOptions
    folder: Path | None
    """of the checkpoint; None where weights are made up"""
    flags: argparse.Namespace = field(repr=False)
    api_keys: tuple[bytes, ...] = field(default=(), repr=False)
    given: tuple[str, ...] = ()
    """options that are not as by default, secrets hidden"""


def serve_options(flags: argparse.Namespace, defaults: argparse.Namespace) -> ServeOptions:
    """Return checked options. Raises ArgumentsError, RequestError for a watermark that is none."""
    if flags.weights is None:
        raise ArgumentsError("--weights DIR: the folder of the checkpoint is needed")
    _check(flags)
    is_made_up = flags.weights.partition(":")[0] == "random"
    folder = None if is_made_up else Path(flags.weights)
    return ServeOptions(
        engine=_engine(flags, folder),
        folder=folder,
        flags=flags,
        api_keys=tuple(_keys(flags)),
        given=tuple(_given(flags, defaults)),
    )


def check_places(options: ServeOptions) -> None:
    """Refuse paths that hold nothing, before anything heavy is imported. Raises ArgumentsError."""
    artifact = Path(options.engine.artifact)
    if not artifact.exists():
        raise ArgumentsError(f"{artifact}: no such file or folder")
    if options.folder is not None and not options.folder.is_dir():
        raise ArgumentsError(f"--weights {options.folder}: no such folder")


def _check(flags: argparse.Namespace) -> None:
    """Refuse what cannot be meant. Raises ArgumentsError."""
    if not 0 <= flags.port <= 65535:
        raise ArgumentsError(f"--port: must be from 0 to 65535, is {flags.port}")
    if not 0 <= flags.max_logprobs <= MAX_LOGPROBS:
        raise ArgumentsError(
            f"--max-logprobs: must be from 0 to {MAX_LOGPROBS}, is {flags.max_logprobs}"
        )
    if not _PREFIX.fullmatch(flags.metrics_prefix):
        word = shown(flags.metrics_prefix)
        raise ArgumentsError(f"--metrics-prefix: must be letters, digits and _, is {word}")
    for name in ("max_num_queued_reqs", "max_num_queued_tokens", "stream_interval"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise ArgumentsError(f"--{name.replace('_', '-')}: must be 1 or more, is {value}")
    for name in ("shutdown_timeout", "watchdog_timeout"):
        if not 0 <= (value := getattr(flags, name)) <= 86400:
            option = name.replace("_", "-")
            raise ArgumentsError(f"--{option}: must be from 0 to 86400 seconds, is {value}")
    if bool(flags.ssl_keyfile) and not flags.ssl_certfile:
        raise ArgumentsError("--ssl-keyfile: needs --ssl-certfile beside it")
    if flags.uds and (flags.ssl_certfile or flags.port != 8000 or flags.host != "127.0.0.1"):
        raise ArgumentsError("--uds: takes the place of --host, --port and --ssl-…")
    if "*" in flags.allowed_origins and flags.allow_credentials:
        raise ArgumentsError("--allow-credentials: cannot be given to all origins; name them")


def _engine(flags: argparse.Namespace, folder: Path | None) -> EngineOptions:
    return EngineOptions(
        artifact=str(Path(flags.artifact).absolute()),
        weights=flags.weights if folder is None else str(folder.absolute()),
        device=flags.device,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_model_len=flags.max_model_len,
        kv_cache_memory_bytes=flags.kv_cache_memory_bytes,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        threads=flags.threads,
        chunk_tokens=flags.long_prefill_token_threshold,
        graphs=not flags.enforce_eager,
        scheduling_policy=flags.scheduling_policy,
        async_scheduling=flags.async_scheduling,
        enable_prefix_caching=flags.enable_prefix_caching,
        prefix_cache_retention_interval=flags.prefix_cache_retention_interval,
        watermark=_watermark(flags),
    )


def _watermark(flags: argparse.Namespace) -> Watermark | None:
    key = os.environ.get(WATERMARK_VARIABLE)
    if flags.watermark_config is None and key is None:
        return None
    values: dict[str, Any] = dict(flags.watermark_config or {})
    if "key" not in values and key is not None:
        if not (key.isascii() and key.isdigit()):
            raise ArgumentsError(f"{WATERMARK_VARIABLE}: must be a whole number")
        values["key"] = int(key)
    unknown = sorted(values.keys() - {part.name for part in fields(Watermark)})
    if unknown or "key" not in values:
        said = f"{shown(unknown[0])} is no part of it" if unknown else "has no key"
        raise ArgumentsError(f"--watermark-config: {said}")
    return Watermark(**values)


def _keys(flags: argparse.Namespace) -> list[bytes]:
    keys = list(flags.api_key or ())
    if not keys and (key := os.environ.get(API_KEY_VARIABLE)):
        keys = [key]
    if any(not key for key in keys):
        raise ArgumentsError("--api-key: must not be empty")
    return [key.encode() for key in keys]


def _given(flags: argparse.Namespace, defaults: argparse.Namespace) -> list[str]:
    found = []
    for name, value in sorted(vars(flags).items()):
        if name in ("command", "artifact", "debug") or value == getattr(defaults, name, None):
            continue
        found.append(f"{name.replace('_', '-')}={'***' if name in SECRET else shown(value)}")
    return found
