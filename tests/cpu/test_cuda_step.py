"""The GPU's step program against a driver that records: launches, parameters, errors."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import gpu_toy as toy
import pytest
from fake_driver import Outcome, build_driver, parameter_sizes, run_commands

from kernelgen.codegen.cuda.host import cuda_headers, step_value_places, workspace_bytes
from kernelgen.compile.store import Store
from kernelgen.compile.toolchain import find_toolchain
from kernelgen.core.elf import read_library


def cuda_include() -> Path | None:
    """A folder with cuda.h: that of a toolkit, or the one that Triton brings."""
    found = importlib.util.find_spec("triton")
    bundled = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    places += [place / "backends" / "nvidia" / "include" for place in bundled]
    return next((place for place in places if (place / "cuda.h").is_file()), None)


class Bench:
    """One built library and the stand-in driver."""

    def __init__(
        self, folder: Path, driver: Path, *, sm: int = 90, shared_bytes: int = 1024
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.program = toy.program(sm)
        units = self.program.units()
        cubins = {unit.name: folder / f"{unit.name}.cubin" for unit in units}
        for name, path in cubins.items():
            path.write_text(f"code of {name}")
        images = {u.name: toy.made_up_image(u, sm, shared_bytes=shared_bytes) for u in units}
        store = Store(folder / "store")
        with store.session():
            self.library = toy.link(self.program, images, cubins, store)
        types = {u.function: [a.type for a in u.signature] for u in units}
        self.settings = {"FAKE_PARAMETERS": parameter_sizes(types), "FAKE_SM": str(sm)}
        self.driver = driver

    def run(self, *commands: list[object], **settings: str) -> Outcome:
        return run_commands(
            self.library,
            commands,
            driver=self.driver,
            log=self.folder / "calls.log",
            **{**self.settings, **settings},
        )


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, driver: Path) -> Bench:
    return Bench(tmp_path_factory.mktemp("gpu"), driver)


def test_library_needs_no_driver(bench: Bench) -> None:
    facts = read_library(bench.library)
    assert all(symbol.startswith("TVMFFI") for symbol in facts.undefined)
    assert not any("stdc++" in name or "cuda" in name for name in facts.needed), facts.needed
    names = {symbol.removeprefix("__tvm_ffi_") for symbol in facts.exported}
    following = {"refine", "keep_masks", "logprobs"}
    assert names == {"kg_abi", "kg_isa", "kg_devices", "bind", "load", "step", "kernel"} | following
    data = bench.library.read_bytes()
    assert all(f"code of {unit.name}".encode() in data for unit in bench.program.units())
    assert str(bench.folder).encode() not in data and b"step.cpp" not in data


def test_equal_kernels_give_equal_libraries(bench: Bench, tmp_path: Path) -> None:
    again = Bench(tmp_path / "a longer folder", bench.driver)
    assert again.library.read_bytes() == bench.library.read_bytes()


def test_a_step_launches_what_the_plan_says(bench: Bench) -> None:
    done = bench.run(*toy.bind_all(), ["stream", 77], ["step", 1, toy.args()]).fine()
    found = [(launch.symbol, launch.grid) for launch in done.launches]
    layer = [
        ("gemv", (63, 4, 1)),
        ("insert", (4, 1, 1)),
        ("gemv", (63, 1, 1)),
        ("add", (1, 1, 1)),
    ]
    assert found == [("prepare", (1, 1, 1)), *layer, *layer, ("gemv", (63, 4, 1))]
    assert {launch.stream for launch in done.launches} == {77}
    assert [launch.block for launch in done.launches[:3]] == [(128, 1, 1)] * 2 + [(32, 1, 1)]


def test_parameters_are_what_was_bound(bench: Bench) -> None:
    done = bench.run(*toy.bind_all(), ["step", 1, toy.args()], ["step", 2, toy.args()]).fine()
    at = toy.ADDRESS
    places = step_value_places(toy.ARGS)
    ids, positions, rows, first = (at["workspace"] + place for place in places)
    x, y, scratch = first, first + 4096, first + 8192
    prepare, *rest = [launch.values for launch in done.launches[:10]]
    assert prepare == (at["args"], at["last_sampled"], ids, positions, rows, 0, 0)
    for layer in (0, 1):
        gemv, insert, split, merge = rest[4 * layer : 4 * layer + 4]
        w, offset = at[f"layers.{layer}.w"], toy.CACHE.places[layer].offset_bytes
        group = toy.CACHE.groups[layer].name
        table = at["args"] + 4 * toy.ARGS.offset(f"block_table.{group}")
        assert gemv == (x, w, y, at["args"], 0, 0)
        assert insert == (y, at["cache"], offset, table, rows, 104, 0, 0)
        assert split == (y, w, scratch, at["args"], 0, 0)
        assert merge == (scratch, y, x, 0, 0)
    assert rest[8] == (x, at["head"], at["logits"], at["args"], 0, 0)
    mixed = [launch.values for launch in done.launches[10:]]
    assert mixed[1][0] == x + 512 and mixed[2][5] == 164


def test_a_grid_without_blocks_is_not_launched(bench: Bench) -> None:
    done = bench.run(*toy.bind_all(), ["step", 2, toy.args()]).fine()
    assert [launch.symbol for launch in done.launches].count("add") == 0
    assert len(done.launches) == 8


def test_dependent_launch_is_for_followers_made_for_it(bench: Bench) -> None:
    done = bench.run(*toy.bind_all(), ["step", 0, toy.args()]).fine()
    first, *others = done.launches
    assert first.attributes == {}
    for launch in others:
        assert launch.attributes == ({} if launch.symbol == "add" else {6: 1})


def test_modules_are_loaded_once_and_only_when_wanted(bench: Bench) -> None:
    step = ["step", 1, toy.args()]
    done = bench.run(["load", 1], *toy.bind_all(), ["load", 1], step, step)
    assert done.error(0).startswith("RuntimeError: no buffer is bound")
    loads = [call for call in done.calls if call.startswith("cuModuleLoadData")]
    assert loads == [f"cuModuleLoadData code of {unit.name}" for unit in bench.program.units()]
    before = done.calls.index(next(c for c in done.calls if c.startswith("cuLaunchKernelEx")))
    assert not any("Module" in call or "Func" in call for call in done.calls[before:])
    lazy = bench.run(*toy.bind_all(), ["kernel", "gemv", 0, toy.args(), None, None, None]).fine()
    assert [c for c in lazy.calls if "LoadData" in c] == ["cuModuleLoadData code of gemv"]


def test_context_is_the_primary_one_and_others_come_back(bench: Bench) -> None:
    plain = bench.run(*toy.bind_all(), ["step", 0, toy.args()], ["step", 0, toy.args()]).fine()
    assert [c for c in plain.calls if "Ctx" in c] == [
        "cuDevicePrimaryCtxRetain 0",
        "cuCtxSetCurrent primary",
    ]
    step = ["step", 0, toy.args()]
    other = bench.run(*toy.bind_all(), ["other context"], step).fine()
    assert [c for c in other.calls if "SetCurrent" in c] == [
        "cuCtxSetCurrent primary",
        "cuCtxSetCurrent other",
    ]


def test_one_kernel_alone(bench: Bench) -> None:
    x, y = (toy.tensor(n << 24, [toy.K], "bfloat16") for n in (1, 2))
    scratch = toy.tensor(3 << 24, [8192], "uint8")
    alone = ["kernel", "split_add", 1, toy.args(), x, None, y, scratch, None]
    done = bench.run(*toy.bind_all(), alone).fine()
    split, merge = done.launches
    w = toy.ADDRESS["layers.0.w"]
    assert split.values == (1 << 24, w, 3 << 24, toy.ADDRESS["args"], 0, 0)
    assert merge.values == (3 << 24, 1 << 24, 2 << 24, 0, 0)
    assert split.attributes == {}
    pages = toy.tensor(4 << 24, [3, toy.PAGE_BYTES], "uint8")
    rows = toy.tensor(5 << 24, [4], "int32")
    insert = bench.run(["kernel", "insert", 1, toy.args(), x, pages, rows]).fine().launches[0]
    assert insert.values[:3] == (1 << 24, 4 << 24, 0) and insert.values[4] == 5 << 24


def test_one_kernel_alone_for_a_layer(bench: Bench) -> None:
    """Among the operands 1000 + n names the launch of layer n, 0 to 4 the plan's own values."""
    x = toy.tensor(1 << 24, [toy.K], "bfloat16")
    for layer in (0, 1):
        alone = ["kernel", "insert", 1, toy.args(), x, 1000 + layer, 2]
        done = bench.run(*toy.bind_all(), alone).fine()
        (insert,) = done.launches
        table = 4 * toy.ARGS.offset(f"block_table.{toy.CACHE.groups[layer].name}")
        rows = toy.ADDRESS["workspace"] + step_value_places(toy.ARGS)[2]
        offset = toy.CACHE.places[layer].offset_bytes
        assert insert.values[1:5] == (
            *(toy.ADDRESS["cache"], offset, toy.ADDRESS["args"] + table, rows),
        )
    refused = bench.run(*toy.bind_all(), ["kernel", "insert", 1, toy.args(), x, 1002, 2])
    text = "ValueError: insert: the plan has no kernel of this name for the layer"
    assert refused.error(-1) == text


def test_kernel_alone_refuses(bench: Bench) -> None:
    x = toy.tensor(1 << 24, [toy.K], "bfloat16")
    done = bench.run(
        ["kernel", "gemm", 0, toy.args(), x],
        ["kernel", "gemv", 0, toy.args(), x],
        ["kernel", "gemv", 0, toy.args(), x, None, x],
        ["kernel", "gemv", 0, toy.args(), x, x | {"address": 8}, x],
        ["kernel", "gemv", 9, toy.args(), x, x, x],
    )
    assert [done.error(i) for i in range(5)] == [
        "ValueError: gemm: the plan has no kernel of this name",
        "TypeError: gemv: 3 operands are expected, got 1",
        "RuntimeError: layers.0.w: not bound, or too small for the plan",
        "ValueError: gemv: operand 1: must be aligned to 16 bytes",
        "ValueError: plan 9 of 3",
    ]
    assert not done.launches


def test_names_and_devices(bench: Bench) -> None:
    done = bench.run(["kg_abi"], ["kg_isa"], ["kg_devices"], FAKE_DEVICES="2").fine()
    abi, isa, devices = (result["value"] for result in done.results)
    assert (abi, isa) == (1, "sm_90")
    one = '"name": "Fake ?GPU?", "sm": 90, "memory_bytes": 141000000000}'
    assert devices == f'[{{"device": 0, {one}, {{"device": 1, {one}]'


def test_shared_memory_above_48_kib_is_asked_for(tmp_path: Path, driver: Path) -> None:
    bench = Bench(tmp_path, driver, sm=80, shared_bytes=100_000)
    done = bench.run(*toy.bind_all(), ["step", 0, toy.args()]).fine()
    asked = [call for call in done.calls if call.startswith("cuFuncSetAttribute insert")]
    assert asked == ["cuFuncSetAttribute insert 8 100000", "cuFuncSetAttribute insert 9 100"]
    assert {launch.shared for launch in done.launches} == {100_000}
    assert all(launch.attributes == {} for launch in done.launches)  # sm_80 has no such launch
    fine = bench.run(*toy.bind_all(), ["step", 0, toy.args()], FAKE_SM="86").fine()
    assert len(fine.launches) == len(done.launches)
    for wrong in ("90", "75"):
        refused = bench.run(*toy.bind_all(), ["step", 0, toy.args()], FAKE_SM=wrong)
        assert refused.error().startswith(f"RuntimeError: needs sm_80, found sm_{wrong} (device 0")


STEP_ERRORS = {
    "wrong GPU": ({"FAKE_SM": "86"}, 'needs sm_90, found sm_86 (device 0, Fake "GPU")'),
    "old driver": (
        {"FAKE_VERSION": "11040"},
        "the NVIDIA driver is too old: it supports CUDA 11.4, CUDA 12.0 or newer is needed",
    ),
    "no GPU": (
        {"FAKE_FAIL": "cuInit=100"},
        "cuInit: CUDA_ERROR_NO_DEVICE (a made-up error)",
    ),
    "code": (
        {"FAKE_FAIL": "cuModuleLoadData=209@2", "FAKE_VERSION": "12020"},
        "gemv: the driver (CUDA 12.2) does not load the code made by ptxas 12.8 for sm_90:"
        " cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU (no kernel image is available)",
    ),
    "symbol": (
        {"FAKE_FAIL": "cuModuleGetFunction=500"},
        "cuModuleGetFunction: CUDA_ERROR_FAKE (a made-up error)",
    ),
    "launch": (
        {"FAKE_FAIL": "cuLaunchKernelEx=2@3"},
        "insert of layer 0: cuLaunchKernelEx: CUDA_ERROR_OUT_OF_MEMORY (a made-up error);"
        " grid 1 x 1 x 1, 32 threads, 1024 bytes shared, key=0x701300, cache=0x600000,"
        " layer_offset=0x0, table=0xa00",
    ),
}


@pytest.mark.parametrize("case", STEP_ERRORS)
def test_errors_reach_python(bench: Bench, case: str) -> None:
    settings, text = STEP_ERRORS[case]
    done = bench.run(*toy.bind_all(), ["step", 0, toy.args()], **settings)
    assert done.error().startswith(f"RuntimeError: {text}")


def test_no_driver_says_so(bench: Bench) -> None:
    everything = [*toy.bind_all(), ["kg_isa"], ["step", 0, toy.args()], ["kg_devices"]]
    done = run_commands(bench.library, everything, driver=None, log=bench.folder / "none.log")
    if "libcuda" not in done.error():
        pytest.skip("this machine has a driver")
    assert all("value" in result for result in done.results[:-2])
    want = "RuntimeError: no NVIDIA driver (libcuda.so.1) on this machine"
    assert (done.error(-2), done.error(-1)) == (want, want)


def test_driver_without_a_function_says_which(bench: Bench, tmp_path: Path) -> None:
    driver = build_driver(tmp_path, "-DWITHOUT_LAUNCH")
    done = run_commands(
        bench.library,
        [*toy.bind_all(), ["step", 0, toy.args()]],
        driver=driver,
        log=tmp_path / "log",
        FAKE_VERSION="11040",
    )
    assert done.error() == (
        "RuntimeError: the NVIDIA driver is too old: it supports CUDA 11.4 and lacks"
        " cuLaunchKernelEx, CUDA 12.0 or newer is needed"
    )


BIND_ERRORS = {
    "on the CPU": (
        {"workspace": toy.tensor(1 << 20, [65536], "uint8", device_type=1)},
        "ValueError: workspace: lies on device type 1, CUDA (2) is expected",
    ),
    "another GPU": (
        {"counters": toy.tensor(1 << 20, [3], "int32", device=1)},
        "ValueError: counters: lies on cuda:1, other buffers on cuda:0",
    ),
    "dtype": (
        {"head": toy.tensor(1 << 20, [toy.N, toy.K], "float32")},
        "ValueError: head: wrong dtype (code 2, 32 bits), bfloat16 is expected",
    ),
    "size": (
        {"head": toy.tensor(1 << 20, [toy.N, toy.K + 1], "bfloat16")},
        "ValueError: head: 250250 elements, 250000 are expected",
    ),
    "pages": (
        {"cache": toy.tensor(1 << 20, [100], "uint8")},
        "ValueError: cache: 100 elements are not a multiple of 8192",
    ),
    "alignment": (
        {"cache": toy.tensor(64, [8192], "uint8")},
        "ValueError: cache: must be aligned to 256 bytes",
    ),
    "strides": (
        {"head": toy.tensor(1 << 20, [toy.N, toy.K], "bfloat16", strides=[1, toy.N])},
        "ValueError: head: must be contiguous",
    ),
    "name": ({"tail": toy.tensor(1 << 20, [1], "int32")}, "ValueError: tail: no buffer of this"),
}


def test_bind_refuses(bench: Bench) -> None:
    wrong = [
        ["bind", name, t] for changed, _ in BIND_ERRORS.values() for name, t in changed.items()
    ]
    done = bench.run(*toy.bind_all(), *wrong)
    errors = dict(zip(BIND_ERRORS, range(-len(wrong), 0), strict=True))
    for case, (_, text) in BIND_ERRORS.items():
        assert done.error(errors[case]).startswith(text), case
    done = bench.run(*toy.bind_all(), *wrong, ["step", 0, toy.args()])
    assert done.launches  # what was bound before still is


def test_step_refuses(bench: Bench) -> None:
    everything = toy.bind_all()
    bare, full = ["step", 0, toy.args()], ["step", 1, toy.args()]
    small = {
        "workspace": toy.tensor(1 << 20, [4096], "uint8"),
        "logits": toy.tensor(1 << 20, [3, toy.VOCABULARY], "float32"),
        "counters": toy.tensor(1 << 20, [2], "int32"),
    }
    done = bench.run(
        bare,
        *everything[:-1],
        bare,
        everything[-1],
        *[c for name, t in small.items() for c in (["bind", name, t], full, *toy.bind_all())],
        ["step", 3, toy.args()],
        ["step", 0, toy.args(shape=[4])],
        ["step", 0, toy.args(dtype="int64")],
        ["step", 0, toy.args(device=1)],
        ["step", 0, toy.args(device_type=1)],
        ["step", 0],
    )
    need = workspace_bytes(bench.program.plans[1], toy.ARGS)
    errors = [f"{r['error']}: {r['text']}" for r in done.results if "error" in r]
    assert errors == [
        "RuntimeError: logits: not bound",
        "RuntimeError: counters: not bound",
        f"ValueError: workspace: holds 4096, the decode plan of size 4 needs {need}",
        "ValueError: logits: holds 3, the decode plan of size 4 needs 4",
        "ValueError: counters: holds 2, the decode plan of size 4 needs 3",
        "ValueError: plan 3 of 3",
        f"ValueError: args: 4 words, {toy.ARGS.words} are expected",
        "ValueError: args: wrong dtype (code 0, 64 bits), int32 is expected",
        "ValueError: args: lies on cuda:1, other buffers on cuda:0",
        "ValueError: args: lies on device type 1, CUDA (2) is expected",
        "TypeError: expected 2 arguments, got 1",
    ]
    assert not done.launches


ABI_CHECK = """
#include <cuda.h>
#include <cstddef>
#include "kg/driver.h"
using namespace kg::cuda;
#define SAME(ours, theirs) static_assert((long long)(ours) == (long long)(theirs), "")
SAME(sizeof(LaunchAttribute), sizeof(CUlaunchAttribute));
SAME(offsetof(LaunchAttribute, value), offsetof(CUlaunchAttribute, value));
SAME(offsetof(CUlaunchAttributeValue, programmaticStreamSerializationAllowed), 0);
SAME(offsetof(CUlaunchAttributeValue, cooperative), 0);
SAME(sizeof(LaunchConfig), sizeof(CUlaunchConfig));
SAME(offsetof(LaunchConfig, shared_bytes), offsetof(CUlaunchConfig, sharedMemBytes));
SAME(offsetof(LaunchConfig, stream), offsetof(CUlaunchConfig, hStream));
SAME(offsetof(LaunchConfig, attributes), offsetof(CUlaunchConfig, attrs));
SAME(offsetof(LaunchConfig, attribute_count), offsetof(CUlaunchConfig, numAttrs));
SAME(COOPERATIVE, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME(PROGRAMMATIC_STREAM_SERIALIZATION, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(MAX_DYNAMIC_SHARED_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(PREFERRED_SHARED_CARVEOUT, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME(CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(sizeof(TensorMap), sizeof(CUtensorMap));
SAME(alignof(TensorMap) % 64, 0);
SAME(FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME(FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME(BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME(NO_INTERLEAVE, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME(PROMOTE_TO_128_BYTES, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
SAME(ZEROS_OUTSIDE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
SAME(3, CU_TENSOR_MAP_SWIZZLE_128B);
SAME(sizeof(Device), sizeof(CUdevice));
SAME(sizeof(Handle), sizeof(CUstream));
#define STRING(x) STRING_OF(x)
#define STRING_OF(x) #x
constexpr bool equal(const char* a, const char* b) {
  return *a == *b && (!*a || equal(a + 1, b + 1));
}
static_assert(equal(STRING(cuDeviceTotalMem), "cuDeviceTotalMem_v2"), "");
"""


def test_structures_are_those_of_cuda_h(tmp_path: Path) -> None:
    headers = cuda_include()
    if headers is None:
        pytest.skip("no cuda.h on this machine")
    for name, text in cuda_headers().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "check.cpp").write_text(ABI_CHECK)
    compiler = shutil.which("g++")
    assert compiler is not None
    includes = ["-I", str(tmp_path), "-isystem", str(headers)]
    includes += ["-isystem", find_toolchain().include]
    command = [compiler, "-std=c++17", "-fsyntax-only", *includes, str(tmp_path / "check.cpp")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
