"""Owns the limits of a run: defaults from the manifest, and the refusal of what it cannot do."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

from .artifact.manifest import Manifest
from .errors import CapacityError, shown
from .memory.retention import Retention
from .schedule.limits import Limits, Policy

DEFAULT_MODEL_LEN = 8192
DEFAULT_BATCHED_TOKENS = 2048
MAX_INTERVAL = 2**31 - 1
MAX_BYTES = 2**62


def resolve_limits(
    manifest: Manifest,
    max_num_seqs: int,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | Literal["auto"] | None = None,
    chunk_tokens: int | None = None,
    steps_in_flight: int = 1,
    scheduling_policy: str = Policy.FCFS,
) -> Limits:
    """Return checked limits; None means the default. Raises CapacityError naming what is allowed.

    `steps_in_flight` is the device's. By default a sequence may be as long as the model allows, up
    to 8192 tokens ("auto": as long as the model allows; what the cache holds is seen later), and a
    step may hold as many tokens as the largest plan, up to 2048.
    """
    longest, args = manifest.max_sequence_tokens, manifest.args
    if max_model_len is None:
        max_model_len = min(longest, DEFAULT_MODEL_LEN)
    elif isinstance(max_model_len, str) and max_model_len == "auto":
        max_model_len = longest
    if max_num_batched_tokens is None:
        sizes = sorted(plan.size for plan in manifest.plans if plan.phase == "mixed")
        fitting = [size for size in sizes if size <= DEFAULT_BATCHED_TOKENS]
        max_num_batched_tokens = max(fitting, default=sizes[0])
    for name, value, high in (
        ("max_num_seqs", max_num_seqs, args.max_rows),
        ("max_model_len", max_model_len, longest),
        ("max_num_batched_tokens", max_num_batched_tokens, args.max_tokens),
        ("chunk_tokens", 1 if chunk_tokens is None else chunk_tokens, args.max_tokens),
    ):
        if not _is_whole(value, 1, high):
            raise CapacityError(
                f"{name} must be from 1 to {high} for this artifact, is {shown(value)}"
            )
    if not isinstance(scheduling_policy, str) or scheduling_policy not in list(Policy):
        allowed = " or ".join(Policy)
        raise CapacityError(f"scheduling_policy must be {allowed}, is {shown(scheduling_policy)}")
    return Limits(
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
        chunk_tokens,
        steps_in_flight,
        Policy(scheduling_policy),
    )


def check_options(options: Mapping[str, object]) -> None:
    """Raise CapacityError where an option, by its name, is what no artifact could take."""
    for name, value in options.items():
        rule, is_good = _OPTIONS[name]
        if not is_good(value):
            raise CapacityError(f"{name} must be {rule}, is {shown(value)}")


def resolve_retention(enable_prefix_caching: bool, interval: int | None) -> Retention | None:
    """Return what prefix caching keeps, None where it is off. Raises CapacityError."""
    if interval is not None and not _is_whole(interval, 0, MAX_INTERVAL):
        raise CapacityError(
            "prefix_cache_retention_interval must be none (keep everything) or from 0 to "
            f"{MAX_INTERVAL} tokens, is {shown(interval)}"
        )
    return Retention(interval) if enable_prefix_caching else None


def resolve_steps(default: int, async_scheduling: bool | None) -> int:
    """Return how many steps are in flight; None leaves it to the device. Raises CapacityError."""
    if async_scheduling is None:
        return default
    if not isinstance(async_scheduling, bool):
        raise CapacityError(
            f"async_scheduling must be true, false or none, is {shown(async_scheduling)}"
        )
    return 1 + async_scheduling


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_share(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= 1 and math.isfinite(value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_OPTIONS: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "threads": ("from 1 to 256, or none", lambda v: v is None or _is_whole(v, 1, 256)),
    "logit_rows": ("1 or more, or none", lambda v: v is None or _is_whole(v, 1, MAX_INTERVAL)),
    "kv_cache_memory_bytes": (
        f"from 0 to {MAX_BYTES}, or none",
        lambda v: v is None or _is_whole(v, 0, MAX_BYTES),
    ),
    "gpu_memory_utilization": ("above 0 and at most 1", _is_share),
    "graphs": ("true or false", _is_flag),
    "enable_prefix_caching": ("true or false", _is_flag),
}
