"""Replicas behind Ray Serve on this machine; skipped where it is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from kernelgen_runtime.server.arguments import ArgumentsError
from kernelgen_runtime.server.command import options_of
from runtime_fakes import environment
from runtime_stub import write_artifact, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]


def test_a_replica_reads_the_line_of_serve() -> None:
    found = options_of(["toy", "--weights", "W", "--max-num-seqs", "4"])
    assert found.engine.artifact.endswith("/toy") and found.engine.max_num_seqs == 4
    with pytest.raises(ArgumentsError, match="there is no such option"):
        options_of(["toy", "--weights", "W", "--max-num-seq", "4"])


@pytest.mark.soak
def test_two_replicas_answer_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve")
    artifact = write_artifact(tmp_path / "toy")
    argv = [sys.executable, ROOT / "bench" / "ray_serve.py", artifact, "--threads", "1"]
    argv += ["--weights", write_checkpoint(tmp_path / "weights")]
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    env = environment() | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "another replica took its place" in done.stdout
