"""Rows made up for tests, and files of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernelgen.tables import Row


def row(**changes: Any) -> dict[str, Any]:
    """A good row as JSON data, with some fields changed."""
    good = {
        "schema": 2,
        "sm": "sm_90",
        "device": "h200",
        "family": "linear",
        "variant": "bf16 n=4096 k=4096",
        "bucket": "decode:8",
        "backend": "triton",
        "choice": {"outputs": 2, "tile_k": 2048},
        "us": 8.9,
        "us_p10": 8.8,
        "us_p90": 9.3,
        "samples": 50,
        "l2": "cold",
        "share_of_ceiling": 0.82,
        "error_share": 0.3,
        "bytes": 33554432,
        "flops": 268435456,
        "source": "0" * 64,
        "toolchain": {"triton": "3.6.0", "ptxas": "12.8"},
        "device_label": "NVIDIA H200",
        "driver": "580.1",
        "clocks": {"sm_min": 1830, "sm_max": 1980, "memory_min": 3201, "memory_max": 3201},
        "date": "2026-11-30T20:00:00Z",
        "provenance": "made up for a test",
    }
    return good | changes


def row_of(**changes: Any) -> Row:
    """The same as an object."""
    data = row(**changes)
    clocks = data.pop("clocks")
    from kernelgen.tables import Clocks

    return Row(**data, clocks=Clocks(**clocks) if isinstance(clocks, dict) else clocks)


def write(root: Path, *rows: dict[str, Any] | str, place: str = "sm_90/h200/linear") -> Path:
    """A table below `root`; texts are lines as they are."""
    path = root / f"{place}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return path
