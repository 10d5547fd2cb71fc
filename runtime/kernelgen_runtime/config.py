"""Owns the limits of a run: defaults from the manifest, and the refusal of what it cannot do."""

from .artifact.manifest import Manifest
from .errors import CapacityError, shown
from .schedule.scheduler import Limits

DEFAULT_MODEL_LEN = 8192
DEFAULT_BATCHED_TOKENS = 2048


def resolve_limits(
    manifest: Manifest,
    max_num_seqs: int,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    chunk_tokens: int | None = None,
    steps_in_flight: int = 1,
) -> Limits:
    """Return checked limits; None means the default. Raises CapacityError naming what is allowed.

    `steps_in_flight` is the device's. By default a sequence may be as long as the model allows, up
    to 8192 tokens, and a step may hold as many tokens as the largest plan, up to 2048.
    """
    longest, args = manifest.max_sequence_tokens, manifest.args
    if max_model_len is None:
        max_model_len = min(longest, DEFAULT_MODEL_LEN)
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
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise CapacityError(
                f"{name} must be from 1 to {high} for this artifact, is {shown(value)}"
            )
    return Limits(
        max_num_seqs, max_num_batched_tokens, max_model_len, chunk_tokens, steps_in_flight
    )
