"""Ahead-of-time compilation needs the Triton package, but neither a GPU nor a driver nor torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from kernelgen.compile.store import Store

TESTS = Path(__file__).resolve().parent.parent
for folder in ("cpu", "oracle"):  # toys, the stand-in driver and GPU; seeded weights
    sys.path.append(str(TESTS / folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("triton") is not None:
        return
    here = Path(__file__).resolve().parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="triton is not installed: kernelgen[gpu]"))


@pytest.fixture(scope="session")
def store() -> Store:
    """The store that all builds of this run share: an unchanged kernel is compiled once."""
    return Store()
