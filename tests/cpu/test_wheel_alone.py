"""A wheel by itself: in an environment without compiler and without kernelgen it answers."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

QUESTION = ["--prompt", "What is the capital of France?", "--max-tokens", "16", "--json"]


@pytest.fixture(scope="module")
def venv(smollm2_builds: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel alone; its dependencies are lent by this one."""
    (wheel,) = smollm2_builds("bfloat16").parent.glob("*.whl")
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # The lent folder is only a path: what it has of kernelgen, an editable install, is not loaded.
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (site / "kernelgen.py").write_text("raise ImportError('the compiler is out of reach')\n")
    (site / "kernelgen_runtime.py").write_text("raise ImportError('only the wheel has it')\n")
    return folder


def run(venv: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    """No PATH, and none of this process's variables but those for threads."""
    env = {"PATH": "", "OMP_WAIT_POLICY": "PASSIVE", "HOME": str(venv)}
    done = [str(a) for a in argv]
    return subprocess.run(done, capture_output=True, text=True, env=env, cwd="/", timeout=120)


def test_it_answers_without_compiler_and_kernelgen(venv: Path, smollm2: Path) -> None:
    done = run(venv, venv / "bin" / "smollm2", "run", "--weights", smollm2, *QUESTION)
    assert done.returncode == 0, done.stderr
    assert "Paris" in json.loads(done.stdout)["text"]
    for name in ("kernelgen", "kernelgen_runtime"):
        assert "ImportError" in run(venv, venv / "bin" / "python", "-c", f"import {name}").stderr


def test_it_serves_without_kernelgen(venv: Path, smollm2: Path) -> None:
    pytest.importorskip("uvicorn")
    argv = [venv / "bin" / "smollm2", "serve", "--weights", smollm2, "--port", "0"]
    env = {"PATH": "", "OMP_WAIT_POLICY": "PASSIVE", "HOME": str(venv)}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stderr=pipe, text=True, env=env, cwd="/") as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if " ready: http://127.0.0.1:" in line:
                break
        process.terminate()
        process.stderr.read()
    assert process.returncode == 0 and " ready: " in lines[-1], "".join(lines)


def test_what_it_needs_is_what_it_says(venv: Path) -> None:
    """Every declared requirement is installed here; nothing else of ours is declared."""
    code = "from importlib.metadata import requires; print('\\n'.join(requires('smollm2')))"
    declared = run(venv, venv / "bin" / "python", "-c", code).stdout.split("\n")
    names = {line.split(">")[0].split(";")[0].strip() for line in declared if line}
    assert not {name for name in names if name.startswith(("kernelgen", "triton", "nvidia"))}
    needed = {"torch", "numpy", "apache-tvm-ffi", "safetensors", "tokenizers", "jinja2"}
    needed |= {"httptools", "llguidance", "msgspec", "prometheus-client", "pyyaml", "starlette"}
    needed |= {"uvicorn", "uvloop"}
    assert needed <= names
    for name in needed:
        metadata.version(name)


def test_a_processor_without_avx2_is_told_in_one_line(venv: Path, smollm2: Path) -> None:
    code = (
        "import sys, smollm2._runtime.artifact.isa as isa\n"
        "isa.cpu_flags = lambda: frozenset(('fpu', 'sse4_2', 'avx', 'f16c'))\n"
        "from smollm2.__main__ import main\n"
        "sys.exit(main())"
    )
    argv = [venv / "bin" / "python", "-c", code, "run", "--weights", smollm2, *QUESTION]
    done = run(venv, *argv)
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "avx2" in line and "AVX2 at least" in line
    assert done.stdout == ""


def test_its_help_needs_no_torch(venv: Path) -> None:
    code = (
        "import sys\nfrom smollm2.__main__ import main\nsys.argv[1:] = ['run', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = run(venv, venv / "bin" / "python", "-c", code)
    assert "--weights" in done.stdout and done.stderr == "False\n"
