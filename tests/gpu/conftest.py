"""Modules of the CPU's tests that the GPU's use too, and the build that they may be given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))

BUILD = "KERNELGEN_GPU_BUILD"


@pytest.fixture(scope="session")
def gpu_build() -> Path:
    """Folder or wheel of a small model built for this machine's GPU."""
    text = os.environ.get(BUILD)
    if not text:
        pytest.skip(f"{BUILD} names no build for this GPU")
    return Path(text)
