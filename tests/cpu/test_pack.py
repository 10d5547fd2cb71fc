"""The serving wheel: one reproducible file that the usual tools accept; read back, compared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelgen.compile.cpp import compile_cpp
from kernelgen.compile.store import Store
from kernelgen.compile.units import CppSource
from kernelgen.core.errors import UnsupportedError, UsageError
from kernelgen.pack import platform
from kernelgen.pack.bundle import REQUIRES, pack, package_name
from kernelgen.pack.contents import own_files, read_contents
from kernelgen.pack.diff import diff_builds
from kernelgen.pack.inspect import kernel_source, summarise
from kernelgen.pack.wheel import WheelMeta, wheel_bytes

SOURCE = """#include <cmath>
#include <tvm/ffi/c_api.h>
extern "C" __attribute__((visibility("default")))
int __tvm_ffi_kg_abi(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* ret) {
  ret->type_index = kTVMFFIInt; ret->zero_padding = 0;
  ret->v_int64 = args->type_index == kTVMFFIFloat ? (int64_t)std::pow(args->v_float64, 0.3) : 1;
  return 0;
}
"""


def manifest(name: str = "tiny-model", version: str = "0.1.0") -> dict[str, object]:
    """The smallest manifest that follows docs/abi.md."""
    shapes: dict[str, list[int]] = {"counts": [4], "token_ids": [8], "row_slot": [2]}
    shapes |= {"row_query_start": [3], "row_seq_len": [2], "block_table.full": [2, 4]}
    shapes |= {"logit_token": [2], "logit_row": [2], "temperature": [2], "top_p": [2]}
    shapes |= {"top_k": [2], "seed": [2, 2]}
    fields, offset = [], 0
    for field, shape in shapes.items():
        bits = "float32" if field in ("temperature", "top_p") else "int32"
        fields.append({"name": field, "offset": offset, "shape": shape, "bits": bits})
        offset += shape[0] * (shape[1] if len(shape) > 1 else 1)
    library = {"isa": "avx2", "path": "lib/cpu_avx2.so", "measured": True}
    part = {"tensor": "w", "rows": 4, "cols": 1}
    target = {
        "target": "cpu",
        "device_names": [],
        "libraries": [library],
        "weights": [
            {"name": "w", "dtype": "float32", "shape": [4], "layout": "rows", "parts": [part],
             "interleave": 0, "source": "checkpoint"}
        ],
        "cache": {
            "page_tokens": 16,
            "page_bytes": 128,
            "groups": [{"name": "full", "kind": "full", "window": None, "layers": [0]}],
        },
        "args": {"words": offset, "max_tokens": 8, "max_rows": 2, "max_pages": 4, "fields": fields},
        "plans": [{"id": 0, "phase": "mixed", "size": 8, "logit_rows": 2,
                   "workspace_bytes": 64}],
        "counters": 0,
    }  # fmt: skip
    return {
        "schema": 2,
        "abi": 1,
        "name": name,
        "version": version,
        "generator": "kernelgen 0.1.0",
        "architecture": "tiny",
        "activation_dtype": "float32",
        "model": {"vocab": 32, "max_positions": 64},
        "targets": [target],
        "tensors": [{"name": "w", "shape": [4], "dtypes": ["float32"]}],
        "ignored": [],
        "chat": {"eos_token_ids": [0], "bos_token_id": None},
    }  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    store = Store(tmp_path_factory.mktemp("store"))
    with store.session():
        made = compile_cpp([CppSource("k.cpp", SOURCE)], isas=["avx2"], store=store)
        return made[0].path.read_bytes()


@pytest.fixture
def build(tmp_path: Path, library: bytes) -> Path:
    return make_build(tmp_path / "tiny-model", library)


def make_build(folder: Path, library: bytes, name: str = "tiny-model") -> Path:
    (folder / "lib").mkdir(parents=True)
    (folder / "kernels").mkdir()
    (folder / "lib/cpu_avx2.so").write_bytes(library)
    (folder / "kernels/one.cpp").write_text("// one kernel\nint one() { return 1; }\n")
    (folder / "manifest.json").write_text(json.dumps(manifest(name)))
    kernel = {"name": "one", "family": "f", "variant": "v", "source": "kernels/one.cpp"}
    (folder / "kernels.json").write_text(json.dumps([{**kernel, "ops": ["add", "mul"]}]))
    return folder


def run(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    # From "/": python puts the working folder first on its path, and that is the checkout.
    argv = [str(a) for a in args]
    return subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **env}, cwd="/")


def test_wheel_is_one_reproducible_file(build: Path, tmp_path: Path, library: bytes) -> None:
    wheel = pack(build, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == [wheel.name]
    assert wheel.name == "tiny_model-0.1.0-py3-none-manylinux_2_29_x86_64.whl"  # pow of glibc 2.29
    other = make_build(tmp_path / "other folder" / "x", library)
    for path in other.rglob("*"):
        os.utime(path, (5, 5))
    assert pack(other, tmp_path / "again").read_bytes() == wheel.read_bytes()


def test_wheel_holds_build_and_runtime(build: Path, tmp_path: Path, repo: Path) -> None:
    (build / "__pycache__").mkdir()
    (build / "__pycache__/x.pyc").write_bytes(b"")
    with zipfile.ZipFile(pack(build, tmp_path)) as archive:
        names = archive.namelist()
        metadata = archive.read("tiny_model-0.1.0.dist-info/METADATA").decode()
        script = archive.read("tiny_model-0.1.0.dist-info/entry_points.txt").decode()
        modes = {i.filename: i.external_attr >> 16 for i in archive.infolist()}
    runtime = {
        f"tiny_model/_runtime/{path.relative_to(repo / 'runtime/kernelgen_runtime').as_posix()}"
        for path in (repo / "runtime/kernelgen_runtime").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    own = {"__init__.py", "__main__.py", "manifest.json", "kernels.json", "kernels/one.cpp"}
    own |= {"lib/cpu_avx2.so"}
    files = {name for name in names if not name.startswith("tiny_model-")}
    assert files == runtime | {f"tiny_model/{name}" for name in own}
    assert names[-1] == "tiny_model-0.1.0.dist-info/RECORD"
    assert all(f"Requires-Dist: {requirement}\n" in metadata for requirement in REQUIRES)
    assert "kernelgen\n" not in metadata and "triton" not in metadata
    assert script == "[console_scripts]\ntiny-model = tiny_model.__main__:main\n"
    assert modes["tiny_model/lib/cpu_avx2.so"] == 0o100755


def test_usual_tools_accept_it(build: Path, tmp_path: Path) -> None:
    wheel = pack(build, tmp_path)
    for tool in (["check_wheel_contents"], ["twine", "check", "--strict"]):
        done = run(sys.executable, "-m", *tool, wheel)
        assert done.returncode == 0, done.stdout + done.stderr


READ = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("kernelgen", "kernelgen_runtime"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
from importlib import import_module
for package in ("tiny_model", "second"):
    top = import_module(package)
    opened = import_module(package + "._runtime.artifact.open").open_artifact(top.__path__[0])
    assert opened.library_path(opened.manifests[0].libraries[0]).is_file()
    print(opened.manifests[0].name, top.__version__)
"""


@pytest.mark.row("R-186")
def test_two_wheels_install_beside_each_other(build: Path, tmp_path: Path, library: bytes) -> None:
    wheels = [pack(build, tmp_path), pack(make_build(tmp_path / "b", library, "second"), tmp_path)]
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target")
    done = run(*pip, site, *wheels)
    assert done.returncode == 0, done.stderr
    assert (site / "bin/tiny-model").is_file() and (site / "bin/second").is_file()
    done = run(sys.executable, site / "bin/tiny-model", "run", "--help", PYTHONPATH=str(site))
    assert "--weights" in done.stdout and "artifact" not in done.stdout, done.stderr
    done = run(sys.executable, "-c", READ, PYTHONPATH=str(site))
    assert done.stdout.split("\n")[:2] == ["tiny-model 0.1.0", "second 0.1.0"], done.stderr


def test_read_back_from_folder_and_wheel(build: Path, tmp_path: Path) -> None:
    wheel, folder = read_contents(pack(build, tmp_path)), read_contents(build)
    assert own_files(wheel) == folder.files
    assert "METADATA" in wheel.meta and folder.meta == {}
    summary = summarise(wheel)
    assert summary.fields["name"] == "tiny-model" and summary.fields["abi"] == "1"
    assert summary.libraries[0].exports == ("kg_abi",)
    assert summary.libraries[0].glibc == "GLIBC_2.29"
    assert summary.kernels[0].ops == ("add", "mul")
    assert kernel_source(wheel, "one").startswith("// one kernel")
    with pytest.raises(UsageError, match=r"holds no kernel 'two' \(allowed: one\)"):
        kernel_source(wheel, "two")


def test_difference_of_two_builds(build: Path, tmp_path: Path) -> None:
    before = read_contents(pack(build, tmp_path / "a"))
    assert diff_builds(before, read_contents(pack(build, tmp_path / "b"))).same
    changed = manifest()
    changed["model"] = {"vocab": 33, "max_positions": 64, "extra": "x"}
    (build / "manifest.json").write_text(json.dumps(changed))
    (build / "kernels/one.cpp").write_text("// one kernel\nint one() { return 2; }\n")
    (build / "kernels/two.cpp").write_text("")
    diff = diff_builds(before, read_contents(pack(build, tmp_path / "c")))
    assert [(f.path, f.before, f.after) for f in diff.fields] == [
        ("model.extra", "", '"x"'),
        ("model.vocab", "32", "33"),
    ]
    assert diff.added == ("kernels/two.cpp",) and diff.removed == ()
    kernel = next(change for change in diff.changed if change.path == "kernels/one.cpp")
    assert "-int one() { return 1; }" in kernel.lines and "+int one() { return 2; }" in kernel.lines


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "a\nRequires-Dist: evil", "cannot name a wheel"),
        ("name", "../../evil", "cannot name a wheel"),
        ("name", "torch", "cannot be called 'torch'"),
        ("name", "json", "cannot be called 'json'"),
        ("name", "class", "cannot be called 'class'"),
        ("name", "__", "cannot be called ''"),
        ("name", 3, "name must be a string"),
        ("version", "1.0\n", "cannot be a wheel's"),
        ("version", "latest", "cannot be a wheel's"),
        ("targets", [], "names no library"),
        (
            "targets",
            [{"target": "cpu", "libraries": [{"path": "lib/no.so"}]}],
            "'lib/no.so' is not",
        ),
    ],
)
def test_bad_manifest_is_refused(
    build: Path, tmp_path: Path, field: str, value: object, said: str
) -> None:
    (build / "manifest.json").write_text(json.dumps({**manifest(), field: value}))
    with pytest.raises(UsageError) as caught:
        pack(build, tmp_path / "out")
    assert said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_strange_files_are_refused(build: Path, tmp_path: Path) -> None:
    (build / "kernels/link.cpp").symlink_to("/etc/passwd")
    (build / "__init__.py").write_text("")
    (build / "_runtime").mkdir()
    (build / "_runtime/x.py").write_text("")
    with pytest.raises(UsageError) as caught:
        pack(build, tmp_path / "out")
    for part in ("3 problems", "link.cpp: is a link", "__init__.py: is a name", "_runtime/x.py"):
        assert part in str(caught.value)


def test_no_build_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"manifest\.json"):
        pack(tmp_path, tmp_path / "out")
    with pytest.raises(UsageError, match=r"holds no manifest\.json"):
        read_contents(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        read_contents(tmp_path / "absent")


def test_library_that_would_not_load_elsewhere(build: Path, tmp_path: Path) -> None:
    source, lib = tmp_path / "a.c", tmp_path / "libodd.so"
    source.write_text("int odd(void) { return 1; }")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", lib], check=True)
    user = tmp_path / "b.c"
    user.write_text("int odd(void); int lost(void); int f(void) { return odd() + lost(); }")
    out = build / "lib/cpu_avx2.so"
    argv = ["gcc", "-shared", "-fPIC", user, f"-L{tmp_path}", "-lodd", "-Wl,-rpath,/opt/odd"]
    subprocess.run([*argv, "-o", out], check=True)
    with pytest.raises(UnsupportedError) as caught:
        pack(build, tmp_path / "out")
    text = str(caught.value)
    assert "needs libodd.so" in text and "search path /opt/odd" in text and "leaves lost" in text


def test_other_machine_and_no_library(library: bytes) -> None:
    arm = bytearray(library)
    arm[18] = 183
    with pytest.raises(UnsupportedError, match="ELF machine 183"):
        platform.platform_tag({"a.so": bytes(arm)})
    with pytest.raises(UsageError, match=r"a\.so: is not a 64-bit"):
        platform.platform_tag({"a.so": b"MZ"})


def test_tag_follows_the_newest_symbol() -> None:
    problems = platform.ProblemList("x")
    floors = [("GLIBC_2.38", 38), ("GLIBC_2.2.5", 2), ("GLIBCXX_3.4.30", 35), ("CXXABI_1.3", 17)]
    for version, floor in floors:
        assert platform._floor_of("a.so", "lib", version, problems) == floor
    assert not problems
    platform._floor_of("a.so", "lib", "GLIBCXX_3.4.99", problems)
    platform._floor_of("a.so", "lib", "GLIBC_PRIVATE", problems)
    assert len(problems) == 2


def test_package_names() -> None:
    assert package_name("SmolLM2-135M-Instruct") == "smollm2_135m_instruct"
    assert package_name("3b.model") == "m_3b_model"


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", "a\\b", "a\nb", ""])
def test_paths_inside_a_wheel(path: str) -> None:
    meta = WheelMeta("a", "1", "s", "any")
    with pytest.raises(UsageError, match="path inside a wheel"):
        wheel_bytes(meta, {path: b""})


def test_damaged_wheel_is_refused(build: Path, tmp_path: Path) -> None:
    wheel = pack(build, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["tiny_model/kernels/one.cpp"] = b"changed"
    members["tiny_model/added.txt"] = b""
    del members["tiny_model/kernels.json"]
    with zipfile.ZipFile(tmp_path / "bad.whl", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(UsageError) as caught:
        read_contents(tmp_path / "bad.whl")
    for part in ("one.cpp': differs", "added.txt': is not in", "kernels.json': is in RECORD but"):
        assert part in str(caught.value)


@given(at=st.floats(0, 1), flip=st.integers(1, 255), cut=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_damage_to_a_wheel_is_one_error(
    small_wheel: Path, at: float, flip: int, cut: bool
) -> None:
    data = bytearray(small_wheel.read_bytes())
    place = int(at * (len(data) - 1))
    data[place] ^= flip
    path = small_wheel.parent / "damaged.whl"
    path.write_bytes(data[:place] if cut else data)
    try:
        read_contents(path)
    except UsageError as error:
        assert "damaged.whl" in str(error)


@pytest.fixture(scope="module")
def small_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheel") / "a.whl"
    files = {"a/manifest.json": json.dumps(manifest()).encode(), "a/k.cpp": b"int x;\n" * 9}
    path.write_bytes(wheel_bytes(WheelMeta("a", "1", "s", "any"), files))
    return path


def test_kernelgen_itself_installs_with_its_resources(tmp_path: Path, repo: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(
        repo,
        tree,
        ignore=shutil.ignore_patterns(".git", ".*_cache", "__pycache__", "tests", "*.so"),
    )
    (tree / "README.md").touch()
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation")
    done = run(*pip, "--target", tmp_path / "site", tree)
    assert done.returncode == 0, done.stderr
    code = (
        "from kernelgen.core.resources import *\n"
        "for path in templates_dir(), tables_dir(), runtime_dir(), license_file(): print(path)"
    )
    done = run(sys.executable, "-c", code, PYTHONPATH=str(tmp_path / "site"))
    places = done.stdout.split()
    site = str(tmp_path / "site")
    assert len(places) == 4 and all(place.startswith(site) for place in places), done.stderr
    shipped = Path(places[0])
    assert {p.relative_to(shipped) for p in shipped.rglob("*.h")} == {
        p.relative_to(repo / "templates") for p in (repo / "templates").rglob("*.h")
    }
    assert (Path(site) / "kernelgen/py.typed").is_file()
    assert (Path(site) / "kernelgen_runtime/py.typed").is_file()
