"""Owns the cached type hints of dataclasses, which the JSON codec reads in both directions."""

from __future__ import annotations

import functools
from typing import Any, get_type_hints


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Resolved annotation of each field of a dataclass."""
    return get_type_hints(cls)
