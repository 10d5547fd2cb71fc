"""The C++ toolchain: cached per unit, reproducible, and clear about every way it can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kernelgen.compile import toolchain
from kernelgen.compile.cpp import BuildStep, CompileFailed, CppLibrary, compile_cpp
from kernelgen.compile.isa import ISAS, isa, machine_isas
from kernelgen.compile.store import Store
from kernelgen.compile.units import CppSource
from kernelgen.core.elf import parse_library, read_library
from kernelgen.core.errors import DiskFull, UnsupportedError, UsageError

HEADERS = {
    "lib/export.h": textwrap.dedent("""\
        #pragma once
        #include <tvm/ffi/c_api.h>
        #define EXPORT(name) extern "C" __attribute__((visibility("default"))) \\
          int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* ret)
        """)
}
ISA = CppSource(
    "kernels/isa.cpp",
    '#include "lib/export.h"\n#include <cstring>\n'
    "EXPORT(length) { ret->type_index = kTVMFFIInt; ret->zero_padding = 0;\n"
    "  ret->v_int64 = (int64_t)std::strlen(KG_ISA); (void)args; return 0; }\n",
)
PLUS = CppSource(
    "kernels/plus.cpp",
    '#include "lib/export.h"\n'
    "EXPORT(plus) { ret->type_index = kTVMFFIInt; ret->zero_padding = 0;\n"
    '  if (args[0].v_int64 < 0) { TVMFFIErrorSetRaisedFromCStr("ValueError", "negative");'
    " return -1; }\n"
    "  ret->v_int64 = args[0].v_int64 + 1; return 0; }\n",
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def build(store: Store, *sources: CppSource, isas: tuple[str, ...] = ("avx2",)) -> CppLibrary:
    with store.session():
        return compile_cpp(sources, isas=isas, store=store, headers=HEADERS, jobs=2)[0]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> CppLibrary:
    return build(Store(tmp_path_factory.mktemp("store")), ISA, PLUS)


def test_library_is_clean(library: CppLibrary) -> None:
    facts = read_library(library.path)
    assert facts.exported == ("__tvm_ffi_length", "__tvm_ffi_plus")
    assert facts.undefined == ("TVMFFIErrorSetRaisedFromCStr",)
    assert set(facts.needed) <= {"libc.so.6", "libm.so.6"} and not facts.search_paths
    data = library.path.read_bytes()
    for word in (b"/tmp", b"/home", b"site-packages", str(Path.cwd()).encode(), b"kernels/"):
        assert word not in data


def test_library_loads_and_raises(library: CppLibrary) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    if "avx2" not in machine_isas(Path("/proc/cpuinfo").read_text()):
        pytest.skip("this machine has no AVX2")
    module = tvm_ffi.load_module(str(library.path))
    assert module["plus"](41) == 42
    assert module["length"]() == len("avx2")
    with pytest.raises(ValueError, match="negative"):
        module["plus"](-1)


def test_equal_inputs_give_equal_bytes_in_any_folder(tmp_path: Path, library: CppLibrary) -> None:
    other = build(Store(tmp_path / "a" / "longer folder"), PLUS, ISA)
    assert other.path != library.path
    assert other.path.read_bytes() == library.path.read_bytes()


def test_only_what_changed_is_compiled(store: Store) -> None:
    steps: list[BuildStep] = []

    def run(*sources: CppSource, headers: dict[str, str] = HEADERS) -> int:
        steps.clear()
        with store.session():
            made = compile_cpp(
                sources, isas=["avx2"], store=store, headers=headers, progress=steps.append
            )
        assert [s.done for s in steps][-1] == steps[-1].total
        return made[0].compiled

    assert run(ISA, PLUS) == 2 and not any(s.cached for s in steps)
    assert run(ISA, PLUS) == 0 and len(steps) == 1 and steps[0].cached
    changed = CppSource(PLUS.name, PLUS.text.replace("+ 1", "+ 2"))
    assert run(ISA, changed) == 1
    assert run(ISA, PLUS) == 0
    assert run(ISA, headers={"lib/export.h": HEADERS["lib/export.h"] + "// new\n"}) == 1


def test_each_set_gets_its_own_units(store: Store) -> None:
    special = CppSource("kernels/only.cpp", '#include "lib/export.h"\nEXPORT(only) { '
                        "static_assert(sizeof(KG_ISA) == sizeof(\"avx512_bf16\"), \"\");"
                        " (void)args; (void)ret; return 0; }\n", isa="avx512_bf16")  # fmt: skip
    with store.session():
        made = compile_cpp(
            [ISA, special], isas=["avx512_bf16", "avx2"], store=store, headers=HEADERS, jobs=2
        )
    assert [(m.isa, m.units) for m in made] == [("avx512_bf16", 2), ("avx2", 1)]
    assert "__tvm_ffi_only" in read_library(made[0].path).exported


def test_damaged_object_and_library_are_rebuilt(store: Store) -> None:
    good = build(store, PLUS).path.read_bytes()
    for file in store.root.glob("v*/*/*/*.so"):
        file.write_bytes(b"\x7fELF")
    for file in store.root.glob("v*/*/*/*.o"):
        file.write_bytes(b"")
    again = build(store, PLUS)
    assert again.compiled == 1 and again.path.read_bytes() == good


def test_error_shows_file_lines_and_kept_source(store: Store) -> None:
    with pytest.raises(CompileFailed) as caught:
        build(store, ISA, CppSource("kernels/bad.cpp", "int f() {\n  return nothing;\n}\n"))
    text = str(caught.value)
    assert "kernels/bad.cpp avx2 does not compile" in text
    assert "kernels/bad.cpp:2:10: error" in text
    folder = Path(text.rpartition("kept in ")[2])
    assert (folder / "kernels/bad.cpp").read_text().startswith("int f()")
    done = subprocess.run(
        (folder / "command.txt").read_text(), shell=True, cwd=folder, capture_output=True
    )
    assert done.returncode  # the kept command shows the same error
    build(store, ISA)  # the store is fine


def test_undefined_symbol_is_found_at_link(store: Store) -> None:
    text = '#include "lib/export.h"\nint lost(int);\n'
    text += "EXPORT(f) { (void)args; (void)ret; return lost(1); }\n"
    with pytest.raises(CompileFailed, match="nothing defines _Z4losti"):
        build(store, CppSource("a.cpp", text))


def test_full_disk_is_said_as_such(store: Store, monkeypatch, tmp_path: Path) -> None:
    fake = tmp_path / "g++"
    fake.write_text(
        '#!/bin/sh\ncase "$*" in *" -c "*) echo "Fatal error: No space left on device" >&2;'
        ' exit 1;; *) exec g++ "$@";; esac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(DiskFull, match="no space left on device"):
        build(store, PLUS)


@pytest.mark.parametrize("name", ["/etc/x.cpp", "../x.cpp", "a b.cpp", "-x.cpp", 'x".cpp', ""])
def test_strange_names_are_refused(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="plain relative path"):
        build(store, CppSource(name, ""))


def test_missing_or_old_compiler(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UnsupportedError, match="'no-such-compiler' not found; install one"):
        toolchain.find_toolchain()
    old = tmp_path / "g++-9"
    old.write_text("#!/bin/sh\necho 9.4.0\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(UnsupportedError, match=r"version '9\.4\.0' \(allowed: 11 or newer\)"):
        toolchain.find_toolchain()


def test_finding_headers_imports_neither_tvm_ffi_nor_torch() -> None:
    code = (
        "import sys; from kernelgen.compile.toolchain import find_toolchain; find_toolchain();"
        "print([m for m in ('torch', 'tvm_ffi', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


SLOW = """
import sys
from pathlib import Path
from kernelgen.compile.cpp import compile_cpp
from kernelgen.compile.store import Store
from kernelgen.compile.units import CppSource
from kernelgen.core.errors import KernelgenError
store = Store(Path(sys.argv[1]))
units = [CppSource(f"k{i}.cpp", f"int f{i}() {{ return {i}; }}") for i in range(8)]
try:
    with store.session():
        compile_cpp(units, isas=["avx2"], store=store, jobs=2,
                    progress=lambda step: print(step.label, flush=True))
except KernelgenError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def test_interrupt_kills_children_and_keeps_the_store(store: Store, tmp_path: Path) -> None:
    fake, mark = tmp_path / "g++", tmp_path / "running"
    # Units after the second hang in a grandchild, which only killing the group reaches.
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in *"-c k"[01]*) exec g++ "$@";; *"-c k"*) echo $$ >> {mark};'
        ' sleep 60 & wait;; *) exec g++ "$@";; esac\n'
    )
    fake.chmod(0o755)
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, store.root],
        env={**os.environ, "CXX": str(fake)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that runs in the background hands down that interrupts are to be ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout is not None
    assert {child.stdout.readline() for _ in range(2)} == {"k0.cpp avx2\n", "k1.cpp avx2\n"}
    while not mark.exists() or len(mark.read_text().split()) < 2:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=20)
    assert child.returncode == 5
    assert errors.startswith("stopped after 2 of 9 steps; repeat the command")
    for pid in mark.read_text().split():
        assert not Path(f"/proc/{pid}").exists()
    assert store.info().entries == 3  # two units and the headers
    assert not list((store.root / "tmp").iterdir())


def test_two_builds_at_once(store: Store) -> None:
    argv = [sys.executable, "-c", SLOW, store.root]
    children = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    assert store.info().entries == 10  # the headers too
    with store.session():
        keys = [path.name for path in store.root.glob("v1/*/*")]
        assert all(store.get(key) for key in keys)


def test_instruction_sets() -> None:
    with pytest.raises(UnsupportedError, match=r"'sse' is not known .*avx2, avx512"):
        isa("sse")
    everything = "flags\t\t: fpu " + " ".join(f for i in ISAS.values() for f in i.needs)
    assert machine_isas(everything) == ("avx2", "avx512", "avx512_bf16")
    assert machine_isas(everything.replace("avx512_bf16", "")) == ("avx2", "avx512")
    assert machine_isas("flags : fpu sse2") == machine_isas("") == ()


def test_elf_reader_agrees_with_readelf(library: CppLibrary) -> None:
    if not (readelf := next(iter(Path("/usr/bin").glob("readelf")), None)):
        pytest.skip("no readelf")
    shown = subprocess.run(
        [readelf, "-dVW", library.path], capture_output=True, text=True, check=True
    ).stdout
    facts = read_library(library.path)
    assert all(f"Shared library: [{name}]" in shown for name in facts.needed)
    assert shown.count("(NEEDED)") == len(facts.needed)
    assert all(f"Name: {version}" in shown for _, version in facts.versions)


def test_elf_reader_refuses_damage(library: CppLibrary) -> None:
    data = library.path.read_bytes()
    for cut in (0, 4, 63, 64, 1000, len(data) - 100):
        with pytest.raises(UsageError, match="ELF library"):
            parse_library(data[:cut], source="x.so")
    for at in range(0, 64):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        try:
            parse_library(bytes(changed), source="x.so")
        except UsageError as error:
            assert "x.so" in str(error)


def test_headers_that_are_read_ahead_change_no_byte(tmp_path: Path) -> None:
    """Objects with and without them, of sets with enough units and of those with few."""
    sources = [
        CppSource(f"k{i}.cpp", f"#include <cstdint>\nint f{i}() {{ return {i}; }}\n")
        for i in range(5)
    ]
    store, alone = Store(tmp_path / "a"), Store(tmp_path / "b")
    with store.session():
        together = compile_cpp(sources, isas=["avx2"], store=store, jobs=2)[0].path.read_bytes()
    with alone.session():
        for source in sources:  # one at a time: nothing is read ahead
            compile_cpp([source], isas=["avx2"], store=alone, jobs=1)
        each = compile_cpp(sources, isas=["avx2"], store=alone, jobs=1)[0]
        assert each.compiled == 0 and each.path.read_bytes() == together
    assert store.info().entries == 5 + 1 + 1 and alone.info().entries == 5 + 5 + 1
