"""Loading as a whole: memory beside the weights, a bar on terminals only, and an interrupt."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kernelgen_runtime.commands import loading_bar as bar_module
from kernelgen_runtime.commands.loading_bar import loading_bar
from kernelgen_runtime.weights.load import no_one
from runtime_fakes import PEAK_BYTES, environment
from runtime_stub import write_artifact, write_checkpoint

SHARDS, ROWS, COLS = 4, 24576, 1024
SHARD_BYTES = ROWS * COLS * 2
PROBE = (
    PEAK_BYTES
    + """
import sys
from types import SimpleNamespace as Of
from kernelgen_runtime.artifact.manifest import Part, TensorSpec, Weight, laid_out_shape
from kernelgen_runtime.weights.load import load_weights
from dataclasses import replace
import re

count, rows, cols = map(int, sys.argv[2:])
names = [f"w{i}" for i in range(count)]
weights = [
    Weight(n, "bfloat16", (), "panel" if i % 2 else "rows", (Part(n, rows, cols),), 0, None)
    for i, n in enumerate(names)
]
weights = [replace(w, shape=laid_out_shape(w)) for w in weights]
tensors = [TensorSpec(n, (rows, cols), ("BF16",)) for n in names]
model = Of(tensors=tensors, ignored_pattern=re.compile("(?!)"), name="large", config={})
before = peak()
loaded = load_weights(Of(weights=weights, model=model, name="large"), sys.argv[1])
print(peak() - before - loaded.bytes, loaded.bytes)
"""
)


def sparse_shards(folder: Path) -> Path:
    """Files of zeros that take no place on the disk."""
    index = {}
    for i in range(SHARDS):
        name = f"model-{i + 1:05}-of-{SHARDS:05}.safetensors"
        index[f"w{i}"] = name
        about = {"dtype": "BF16", "shape": [ROWS, COLS], "data_offsets": [0, SHARD_BYTES]}
        header = json.dumps({f"w{i}": about}).encode()
        with (folder / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + SHARD_BYTES)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def test_memory_beside_the_weights_does_not_grow_with_the_shards(tmp_path: Path) -> None:
    """Four shards of 48 MiB into buffers of 192 MiB: at most 32 MiB more, less than one shard."""
    sizes = map(str, (SHARDS, ROWS, COLS))
    command = [sys.executable, "-c", PROBE, str(sparse_shards(tmp_path)), *sizes]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    beside, loaded = map(int, result.stdout.split())
    assert loaded == SHARDS * SHARD_BYTES
    assert beside < 32 << 20 < SHARD_BYTES


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar_module, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt), loading_bar() as told:
        told(1_000_000_000, 4_000_000_000)
        told(2_000_000_000, 4_000_000_000)
        time.sleep(0.15)
        assert "2.0/4.0 GB" in screen.getvalue() and "weights" in screen.getvalue()
        raise KeyboardInterrupt
    assert screen.getvalue().endswith("\x1b[2K"), "the line is wiped"


def test_a_quick_load_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with loading_bar() as told:
        told(1, 2), told(2, 2)
    assert screen.getvalue() == ""


def test_what_is_no_terminal_gets_none(capsys: pytest.CaptureFixture[str]) -> None:
    with loading_bar() as told:
        assert told is no_one
        told(1, 2)
    assert capsys.readouterr() == ("", "")


INTERRUPTED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from kernelgen_runtime.cli import main
from kernelgen_runtime.weights.checkpoint import Checkpoint

def slow(*rest):
    print("reading", file=sys.stderr, flush=True)
    time.sleep(60)

Checkpoint.read_into = slow
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupt_while_loading_ends_at_once(tmp_path: Path) -> None:
    built, weights = write_artifact(tmp_path / "toy"), write_checkpoint(tmp_path / "weights")
    command = [sys.executable, "-c", INTERRUPTED, "run", str(built), "--weights", str(weights)]
    child = subprocess.Popen(
        [*command, "--prompt", "w5"], stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert child.stderr is not None and child.stderr.readline() == "reading\n"
    child.send_signal(signal.SIGINT)
    start = time.perf_counter()
    assert child.wait(timeout=30) == 5
    assert time.perf_counter() - start < 10
    assert child.stderr.read() == ""
    child.stderr.close()
