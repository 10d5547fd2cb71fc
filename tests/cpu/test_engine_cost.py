"""What the engine costs beside the model: far from the goal on any machine is a mistake of ours."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

GOAL = 150_000
"""scheduled tokens a second of one core at 256 running requests; measured were 800,000"""


@pytest.mark.row("B-01")
def test_scheduled_tokens_of_one_core(repo: Path) -> None:
    found = importlib.util.spec_from_file_location("engine_loop", repo / "bench" / "engine_loop.py")
    assert found is not None and found.loader is not None
    engine_loop = importlib.util.module_from_spec(found)
    found.loader.exec_module(engine_loop)
    of = {"running": 256, "prompt": 64, "tokens": 96, "window": 40, "depth": 2}
    measured = engine_loop.measure(**of, gpu=False)
    assert measured["scheduled_tokens_per_second"] >= GOAL, measured
