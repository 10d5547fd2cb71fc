"""Owns per-layer lists: one entry for each layer, of numbers, or of the kinds of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelgen.core.errors import quote
from kernelgen.spec.fields import Fields

WINDOW = (1, 1 << 22)
"""allowed window sizes"""

_TYPES = {"full_attention": False, "sliding_attention": True}


def read_layer_windows(
    fields: Fields, layers: int, window: int | None, default: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """The window of each layer, None for a full one, from `layer_types`.

    `default(i)` says whether layer i has a window where the list is absent or null. A windowed
    layer without a `window` is a problem.
    """
    kinds = _list(fields, "layer_types", layers)
    if kinds is None:
        windowed = [default(i) for i in range(layers)]
    else:
        windowed = [_kind(fields, f"layer_types[{i}]", kind) for i, kind in enumerate(kinds)]
    fields.require(
        window is not None or not any(windowed),
        "sliding_window",
        "is not given or not in use, yet layers have a window",
        f"an integer from {WINDOW[0]} to {WINDOW[1]}",
    )
    return tuple(window if w else None for w in windowed)


def read_layer_numbers(
    fields: Fields, name: str, layers: int, fits: Callable[[float], bool], allowed: str
) -> tuple[float, ...] | None:
    """One number for each layer; None when the list is absent or null."""
    values = _list(fields, name, layers)
    if values is None:
        return None
    for i, value in enumerate(values):
        # An integer beyond float64 is out of every range.
        if type(value) not in (int, float) or abs(value) > 1e300 or not fits(value):
            fields.note_wrong(f"{name}[{i}]", value, allowed)
            values[i] = 0.0
    return tuple(float(v) for v in values)


def _kind(fields: Fields, name: str, kind: Any) -> bool:
    if isinstance(kind, str) and kind not in _TYPES:
        fields.refuse(name, f"is {quote(kind)}", ", ".join(_TYPES))
    elif not isinstance(kind, str):
        fields.note_wrong(name, kind, ", ".join(_TYPES))
    return _TYPES.get(kind, False) if isinstance(kind, str) else False


def _list(fields: Fields, name: str, layers: int) -> list[Any] | None:
    """A copy of the list; None when it is absent, null, or not one entry a layer."""
    value = fields.raw(name)
    if value is None or not fields.sound("num_hidden_layers"):
        return None
    if not isinstance(value, list):
        fields.note_wrong(name, value, f"an array of {layers}, one entry a layer")
        return None
    message = f"has {len(value)} entries"
    fields.require(len(value) == layers, name, message, f"{layers}, one a layer")
    return list(value) if len(value) == layers else None
