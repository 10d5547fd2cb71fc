"""Ahead-of-time compilation needs the Triton package, but neither a GPU nor a driver nor torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "cpu"))  # toys and the stand-in driver


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("triton") is not None:
        return
    here = Path(__file__).resolve().parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="triton is not installed: kernelgen[gpu]"))
