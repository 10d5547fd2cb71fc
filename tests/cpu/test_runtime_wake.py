"""A GPU is woken while torch is imported: the one that will be used, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_driver import build_driver
from kernelgen_runtime.device.wake import wake_gpu
from runtime_fakes import environment

CHILD = """
import sys
from kernelgen_runtime.device.wake import wake_gpu
thread = wake_gpu(sys.argv[1], sys.argv[2])
if thread is not None:
    thread.join(10)
assert "torch" not in sys.modules
print("asleep" if thread is None else "woken")
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


def artifact(folder: Path, *targets: str) -> Path:
    (folder / "manifest.json").write_text(json.dumps({"targets": [{"target": t} for t in targets]}))
    return folder


@pytest.mark.parametrize(
    ("targets", "device", "sm", "retained"),
    [
        (("sm_90:h200",), "auto", "90", ["0"]),
        (("cpu", "sm_80:a100", "sm_90:h200"), "auto", "90", ["0"]),
        (("sm_80:a100",), "cuda", "86", ["0"]),
        (("sm_90:h200",), "cuda:1", "90", ["1"]),
        (("sm_90:h200",), "auto", "86", []),
        (("sm_90:h200",), "cpu", "90", None),
        (("cpu",), "auto", "90", None),
    ],
)
def test_the_context_of_the_gpu_that_fits(
    driver: Path,
    tmp_path: Path,
    targets: tuple[str, ...],
    device: str,
    sm: str,
    retained: list[str] | None,
) -> None:
    log = tmp_path / "log"
    env = environment() | {"LD_LIBRARY_PATH": str(driver), "FAKE_LOG": str(log), "FAKE_SM": sm}
    command = [sys.executable, "-c", CHILD, str(artifact(tmp_path, *targets)), device]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=env | {"FAKE_DEVICES": "2"}
    )
    assert done.stdout == ("asleep\n" if retained is None else "woken\n")
    calls = log.read_text().splitlines() if log.exists() else []
    found = [c.split()[1] for c in calls if c.startswith("cuDevicePrimaryCtxRetain")]
    assert found == (retained or [])


def test_no_driver_and_no_folder_are_no_error(tmp_path: Path) -> None:
    if os.path.exists("/usr/lib/x86_64-linux-gnu/libcuda.so.1"):
        pytest.skip("this machine has a driver")
    thread = wake_gpu(artifact(tmp_path, "sm_90:h200"), "auto")
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
    assert wake_gpu(tmp_path / "nothing", "auto") is None
    assert wake_gpu(tmp_path / "manifest.json", "cuda") is None
    assert wake_gpu(tmp_path, "gpu") is None
