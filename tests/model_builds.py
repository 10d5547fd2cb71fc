"""Owns builds and weights that several tests share: made once, found again by their content."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelgen.cli.building import build_model
from kernelgen.cli.machine import best_isa
from kernelgen.cli.model import ModelSource
from kernelgen.spec.config import ConfigFile

ROOT = Path(__file__).resolve().parent.parent


def this_isa() -> str:
    """The best instruction set of this machine; skips the test where there is none."""
    isa = best_isa()
    if isa is None:
        pytest.skip("this processor has no AVX2")
    return isa


def build(
    config: Mapping[str, Any],
    out: Path,
    *,
    name: str = "model",
    isas: Sequence[str] = (),
    dtype: str = "float32",
    fusion: bool = True,
    invariant: bool = False,
) -> Path:
    """A build folder with the libraries of `isas`, by default the one that this machine runs."""
    source = ModelSource(name, name, ConfigFile("config.json", config))
    sets = tuple(isas) or (this_isa(),)
    made = build_model(
        source, ["cpu"], out, dtype=dtype, fusion=fusion, isas=sets, invariant=invariant
    )
    return Path(made.folder)


def small_config(layers: int = 2) -> dict[str, Any]:
    """A built-in model shrunk to a size that builds in seconds."""
    from kernelgen.archs.registry import builtin_config

    config = dict(builtin_config("smollm2-135m-instruct").data)
    sizes = {"hidden_size": 48, "intermediate_size": 80, "vocab_size": 96, "head_dim": 16}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": layers}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return config | sizes | heads | ids | {"max_position_embeddings": 128}


def write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    """A model folder that holds a config and no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def environment(**more: str) -> dict[str, str]:
    """The variables of a child process that finds both packages of this checkout."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


def kernelgen(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """One run of the command line."""
    argv = [sys.executable, "-m", "kernelgen", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=600, env=environment(**env))


def compiler(path: Path, script: str) -> str:
    """A stand-in for g++: a shell script that ends by calling it, for `$CXX`."""
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return str(path)


def at_level(level: int) -> str:
    """For `compiler`: g++ that optimises less. It says so where it is asked who it is: what it has
    made is never taken from the store for what g++ makes.
    """
    return f"""if [ "$1" = --version ]; then g++ --version | sed '1s/$/ -O{level}/'; exit; fi
arguments=(); for a; do arguments+=("${{a/#-O3/-O{level}}}"); done
exec g++ "${{arguments[@]}}\""""


# Compiles without optimising: for tests of everything but the code's speed.
QUICK = at_level(0)

# Objects with nothing in them, after `before` has been done for each unit.
HOLLOW = """case " $* " in
*" -c "*) {before}
  exec g++ -x c++ -c -o "${{@: -1}}" /dev/null ;;
esac
exec g++ "$@"
"""
