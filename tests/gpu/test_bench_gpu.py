"""The benchmark on a real GPU: every kernel of a step has its bytes, baselines stand beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelgen.cli import main

pytestmark = pytest.mark.gpu


def test_a_run_on_the_gpu(gpu_build: Path, tmp_path: Path) -> None:
    if gpu_build.is_dir() and not (gpu_build / "plans").is_dir():
        pytest.skip("the build was carried here without its plans")
    data = tmp_path / "bench.json"
    options = ["--prompt", "24", "--tokens", "16", "--rounds", "2", "--batch", "1,2"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", str(gpu_build), *options, "--json", str(data)])
    assert not ended.value.code
    rows = json.loads(data.read_text())["rows"]
    by_kind = {kind: [r for r in rows if r["kind"] == kind] for kind in {r["kind"] for r in rows}}
    assert len(by_kind["step"]) == 2 and len(by_kind["launches"]) == 2
    for step, launches in zip(by_kind["step"], by_kind["launches"], strict=True):
        own = [row for row in by_kind["kernel"] if row["batch"] == step["batch"]]
        assert sum(row["launches"] for row in own) == launches["launches"]
        assert sum(row["total_us"] for row in own) == pytest.approx(launches["span_us"], rel=0.2)
        assert sum(row["bytes"] is None for row in own) <= 1  # the launch that prepares a step
        # The profiler slows launches of the host, hardly the kernels.
        assert launches["span_us"] < 2 * step["step_us"]["median"]
    assert all(row["cublas_us"]["median"] > 0 for row in by_kind["product"])
    assert {row["phase"] for row in by_kind["attention"]} >= {"decode"}
