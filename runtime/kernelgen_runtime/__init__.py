"""Owns serving a built model: it reads artifact and checkpoint, and needs no compiler."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .generation import Output as Output
    from .llm import LLM as LLM
    from .sample.params import SamplingParams as SamplingParams

_HOMES = {"LLM": "llm", "Output": "generation", "SamplingParams": "sample.params"}
__all__ = ["LLM", "Output", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Import on first use: `--help` and readers of metadata must not pay for torch."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
