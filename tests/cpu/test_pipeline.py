"""A build as a whole: same bytes every time, and nothing half-written however it ends."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from model_builds import HOLLOW, QUICK, build, compiler, environment, kernelgen, small_config
from model_builds import write_config as write

from kernelgen.compile.store import Store

GROWTH = 1.2


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model", small_config())


def listen() -> None:
    """A suite that runs in the background hands down that interrupts are to be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wheels(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.whl"))


def test_two_builds_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other folders, caches and numbers of compilers; real code, not optimised to save time."""
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", QUICK))
    made = []
    for turn in ("first", "a second one"):
        monkeypatch.setenv("KERNELGEN_CACHE", str(tmp_path / turn / "cache"))
        folder = build(small_config(), tmp_path / turn / "out", isas=("avx2",), name="m")
        files = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        made.append((files, [w.read_bytes() for w in wheels(folder.parent)]))
        text = b"\n".join(made[-1][0].values())
        assert str(tmp_path).encode() not in text  # no path of this machine in what is shipped
    assert made[0] == made[1]
    assert len(made[0][1]) == 1 and (Path("lib") / "cpu_avx2.so") in made[0][0]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_an_interrupted_build_leaves_a_valid_cache(
    how: signal.Signals, model: Path, tmp_path: Path
) -> None:
    """The fourth unit hangs when the signal comes; the same command then resumes."""
    log, out = tmp_path / "log", tmp_path / "out"
    before = f"echo $$ >> {log}; [ $(wc -l < {log}) -lt 4 ] || exec sleep 60"
    slow = compiler(tmp_path / "slow", HOLLOW.format(before=before))
    hollow = compiler(tmp_path / "hollow", HOLLOW.format(before=""))
    cache = {"KERNELGEN_CACHE": str(tmp_path / "cache")}
    argv = [sys.executable, "-m", "kernelgen", "build", str(model), "--out", str(out), "-j", "1"]
    child = subprocess.Popen(
        argv,
        env=environment(CXX=slow, **cache),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen,
    )
    while not log.exists() or len(log.read_text().split()) < 4:
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(how)
    _, errors = child.communicate(timeout=20)
    if how is signal.SIGINT:
        assert child.returncode == 5
        assert "repeat the command" in errors and "Traceback" not in errors
    else:  # what a killed build started is ours to end
        os.kill(int(log.read_text().split()[-1]), signal.SIGTERM)
    assert not out.exists() or not list(out.iterdir())

    resumed = kernelgen("build", model, "--out", out, "--json", CXX=hollow, **cache)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["cached"] == 3
    fresh = kernelgen(
        "build", model, "--out", tmp_path / "o", CXX=hollow, KERNELGEN_CACHE=str(tmp_path / "c")
    )
    assert fresh.returncode == 0
    (one,), (two,) = wheels(out), wheels(tmp_path / "o")
    assert one.read_bytes() == two.read_bytes()
    store = Store(tmp_path / "cache")
    with store.session():
        assert not list(store.root.glob("tmp/*"))
        assert all(store.get(path.name) for path in store.root.glob("v1/*/*"))


def test_two_builds_at_once(model: Path, tmp_path: Path) -> None:
    """One cache and one output folder: both end well, and the result is that of either."""
    slow = compiler(tmp_path / "cxx", HOLLOW.format(before="sleep 0.02"))
    env = environment(CXX=slow, KERNELGEN_CACHE=str(tmp_path / "cache"))
    argv = [sys.executable, "-m", "kernelgen", "build", str(model), "--out", str(tmp_path / "out")]
    children = [
        subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], ended
    assert len(list((tmp_path / "out").iterdir())) == 2  # the wheel, its folder, nothing else
    again = kernelgen("build", model, "--out", tmp_path / "again", **env)
    assert again.returncode == 0
    (one,), (two,) = wheels(tmp_path / "out"), wheels(tmp_path / "again")
    assert one.read_bytes() == two.read_bytes()


MOUNT = """mount -t tmpfs -o size={size}k none {disk} || exit 99
{python} -m kernelgen build {model} --out {out}
code=$?; find {disk} -name '*.whl' -o -name manifest.json >&2; exit $code"""


@pytest.mark.parametrize(("what", "size"), [("cache", 40), ("out", 200)])
def test_a_really_full_disk(what: str, size: int, model: Path, tmp_path: Path) -> None:
    """A small file system of its own for the cache, or for the output."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("only root can mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    places = {"cache": tmp_path / "cache", "out": tmp_path / "out", what: disk}
    script = MOUNT.format(
        size=size, disk=disk, python=sys.executable, model=model, out=places["out"]
    )
    cxx = compiler(tmp_path / "cxx", HOLLOW.format(before=""))
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(CXX=cxx, KERNELGEN_CACHE=str(places["cache"])),
    )
    if done.returncode in (1, 99) and "unshare" in done.stderr + done.stdout:
        pytest.skip("this machine lets nobody mount")
    assert done.returncode == 5, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no space left on device while writing")


def test_sixty_layers_are_built_in_the_time_of_six(tmp_path: Path) -> None:
    """Processor time of compilers and of the command together, everything compiled anew."""
    cxx = compiler(tmp_path / "cxx", QUICK)
    code = (
        "import sys; from pathlib import Path; from kernelgen.cli.building import build_model\n"
        "from kernelgen.cli.model import resolve\n"
        "model, out = resolve(sys.argv[1]), Path(sys.argv[2])\n"
        "print(build_model(model, ['cpu'], out, isas=['avx2']).steps)"
    )
    spent: dict[int, list[float]] = {6: [], 60: []}
    steps: dict[int, str] = {}
    for turn in range(3):  # a busy machine may spoil one of them
        for layers, seconds in spent.items():
            place = tmp_path / f"{layers}-{turn}"
            model = write(place / "model", small_config(layers))
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(
                [sys.executable, "-c", code, str(model), str(place / "out")],
                capture_output=True,
                text=True,
                env=environment(CXX=cxx, KERNELGEN_CACHE=str(place / "cache")),
                check=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            steps[layers] = done.stdout
        if min(spent[60]) <= GROWTH * min(spent[6]):
            break
    assert steps[60] == steps[6]  # every layer is compiled once
    assert min(spent[60]) <= GROWTH * min(spent[6]), spent
