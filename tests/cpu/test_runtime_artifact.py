"""Opening artifacts: folders and wheels, every wrong manifest by name, the right library here."""

from __future__ import annotations

import copy
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelgen_runtime.artifact.isa import REQUIRED_FLAGS, choose_library, cpu_flags
from kernelgen_runtime.artifact.manifest import Library
from kernelgen_runtime.artifact.open import open_artifact
from kernelgen_runtime.artifact.read import parse_manifests, read_manifests
from kernelgen_runtime.errors import ArtifactError, UnsupportedCpuError
from runtime_fakes import manifest_json, manifest_of, on_gpu, target_json


def write_build(folder: Path, values: Any = None, library: bytes = b"so") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    values = manifest_json() if values is None else values
    (folder / "manifest.json").write_text(json.dumps(values))
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib" / "cpu_avx2.so").write_bytes(library)
    return folder


def write_wheel(path: Path, members: dict[str, bytes] | None = None) -> Path:
    members = members or {
        "toy/manifest.json": json.dumps(manifest_json()).encode(),
        "toy/lib/cpu_avx2.so": b"so",
        "toy/_runtime/errors.py": b"",
        "toy-1.0.dist-info/METADATA": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
    return path


def test_opens_a_folder(tmp_path: Path) -> None:
    artifact = open_artifact(write_build(tmp_path / "toy"))
    (manifest,) = artifact.manifests
    assert manifest == manifest_of(manifest_json())
    assert artifact.library_path(manifest.libraries[0]).read_bytes() == b"so"
    assert manifest.max_sequence_tokens == 256 and manifest.sm == 0


def test_opens_a_wheel_in_a_private_folder_that_goes_with_it(tmp_path: Path) -> None:
    artifact = open_artifact(write_wheel(tmp_path / "toy-1.0-py3-none-any.whl"))
    folder = artifact.folder
    assert artifact.library_path(artifact.manifests[0].libraries[0]).read_bytes() == b"so"
    assert folder.stat().st_mode & 0o077 == 0
    assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == [
        "cpu_avx2.so",
        "manifest.json",
    ]
    del artifact
    assert not folder.exists()


def link_member() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("toy/lib/cpu_avx2.so")
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ({"manifest.json": b"{}"}, "holds 0"),
        ({"a/b/manifest.json": b"{}"}, "holds 0"),
        ({"a/manifest.json": b"{}", "b/manifest.json": b"{}"}, "holds 2"),
        ({"toy/manifest.json": json.dumps(manifest_json()).encode()}, "lib/cpu_avx2.so is missing"),
        ({"toy/manifest.json": b"{"}, "not JSON"),
    ],
)
def test_wrong_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes], word: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(ArtifactError, match=word):
        open_artifact(write_wheel(tmp_path / "x.whl", members))
    assert not list(temporary.iterdir()), "nothing stays behind"


def test_links_in_wheels_are_refused(tmp_path: Path) -> None:
    path = write_wheel(
        tmp_path / "x.whl", {"toy/manifest.json": json.dumps(manifest_json()).encode()}
    )
    with zipfile.ZipFile(path, "a") as wheel:
        wheel.writestr(link_member(), "/etc/passwd")
    with pytest.raises(ArtifactError, match="is a link"):
        open_artifact(path)


def test_members_are_bounded_whatever_they_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelgen_runtime.artifact.open.MAX_LIBRARY_BYTES", 1000)
    manifest = json.dumps(manifest_json()).encode()
    members = {"toy/manifest.json": manifest, "toy/lib/cpu_avx2.so": b"\0" * 50_000_000}
    path = write_wheel(tmp_path / "bomb.whl", members)
    assert path.stat().st_size < 100_000
    with pytest.raises(ArtifactError, match="larger than 1000 bytes"):
        open_artifact(path)


@settings(max_examples=60, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=5))
def test_damaged_wheels_are_opened_or_refused(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    path = write_wheel(tmp_path_factory.mktemp("w") / "toy.whl")
    content = bytearray(path.read_bytes())
    for at, value in flips:
        content[at % len(content)] = value
    path.write_bytes(content)
    try:
        open_artifact(path)
    except ArtifactError as error:
        assert len(str(error)) < 4000


def test_what_is_no_artifact(tmp_path: Path) -> None:
    write_build(tmp_path / "out" / "toy")
    with pytest.raises(ArtifactError, match=r"did you mean .*toy"):
        open_artifact(tmp_path / "out")
    with pytest.raises(ArtifactError, match="no such file"):
        open_artifact(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="neither a folder nor"):
        open_artifact(tmp_path / "file")


def changed(path: str, value: Any) -> dict[str, Any]:
    """The toy manifest with the field at `path` replaced, or taken out where value is Ellipsis."""
    values: Any = manifest_json()
    *parents, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    at = values
    for parent in parents:
        at = at[parent]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return values  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("name", ..., "name: missing"),
        ("name", "", "name: must be a string"),
        ("activation_dtype", "int4", "activation_dtype: must be one of"),
        ("model/vocab", 0, r"model\.vocab: must be an integer from 1"),
        ("model/vocab", True, r"model\.vocab"),
        ("model/max_positions", 2**40, r"model\.max_positions"),
        ("targets/0/target", "sm_90", r'must be "cpu" or like "sm_90:h200", is .sm_90'),
        ("targets/0/target", "sm_90:h200", "libraries.0..isa: must be sm_90 for this target"),
        ("targets/0/device_names", [7], "device_names: must hold strings"),
        ("targets/0/libraries", [], "libraries: must hold at least one"),
        ("targets/0/counters", -1, "counters: must be an integer from 0"),
        ("targets", [], "targets: must hold at least one"),
        ("targets/0/libraries/0/path", "../x.so", "must be a .so inside"),
        ("targets/0/libraries/0/path", "/lib/x.so", "must be a .so inside"),
        ("targets/0/libraries/0/path", "manifest.json", "must be a .so inside"),
        ("targets/0/libraries/0/isa", "a b", "plain name"),
        ("tensors/0/shape", [0, 6], "sizes must be at least 1"),
        ("tensors/0/shape", [2**30, 2**30], "sizes must be at least 1"),
        ("tensors/0/shape", [2**63], "integers from 0"),
        ("tensors/0/dtypes", [], "at least one dtype"),
        ("tensors/1/name", "embed.weight", "'embed.weight' appears 2 times"),
        ("ignored", ["("], "not a regular expression"),
        ("targets/0/weights/0/layout", "tiles", "layout: must be one of rows, panel"),
        ("targets/0/weights/0/dtype", "int8", "panel is for"),
        ("targets/0/weights/0/shape", [4, 3, 32, 1], r"parts and layout give \[4, 3, 32, 2\]"),
        ("targets/0/weights/0/interleave", -1, "interleave"),
        ("targets/0/weights/0/parts", [], "at least one checkpoint tensor"),
        ("targets/0/weights/0/parts/0/tensor", "nothing", "needs nothing, not among tensors"),
        ("targets/0/weights/1/name", "embed", "'embed' appears 2 times"),
        ("targets/0/weights/1/source", "disk", r"weights\[1\]\.source: must be an object"),
        ("targets/0/weights/2/source/rope/positions", 0, "positions"),
        ("targets/0/weights/2/source/rope/inv_freq", ["x"], "numbers only"),
        ("targets/0/weights/2/source/rope/scale", 10**400, "scale: must be a number"),
        ("targets/0/weights/2/dtype", "bfloat16", "a rope table is float32"),
        ("targets/0/cache/page_tokens", 32, "page_tokens: must be an integer from 16 to 16"),
        ("targets/0/cache/page_bytes", 0, "page_bytes"),
        ("targets/0/cache/state_bytes", 0, "state_bytes"),
        ("targets/0/cache/state_bytes", 64, "must be there for one group of kind state, 0 are"),
        ("targets/0/cache/groups/0/kind", "state", "kind state, 1 are"),
        ("targets/0/cache/groups/0/kind", "ring", "kind"),
        ("targets/0/cache/groups", [], "at least one group"),
        ("targets/0/cache/groups/1/window", None, "must be an integer for kind window"),
        ("targets/0/cache/groups/0/window", 7, "null for kind full"),
        ("targets/0/cache/groups/0/layers", [], "at least one layer"),
        ("targets/0/cache/groups/1/name", "full", "'full' appears 2 times"),
        ("targets/0/args/words", 3, "field ends at"),
        ("targets/0/args/fields/1", ..., "token_ids is missing"),
        ("targets/0/args/fields/1/offset", 0, "counts and token_ids overlap"),
        ("targets/0/args/fields/2/shape", [9], r"row_slot is int32 \[9\], abi 1 says int32 \[8\]"),
        ("targets/0/args/fields/2/bits", "float32", r"row_slot is float32 \[8\]"),
        ("targets/0/args/fields/2/bits", "int64", "bits: must be one of"),
        ("targets/0/plans/0/phase", "prefill", "phase"),
        ("targets/0/plans/1/id", 0, "0 appears 2 times"),
        ("targets/0/plans/0/logit_rows", 2, "decode size 1 has at most 1 logit_rows"),
        ("targets/0/plans/4/logit_rows", 9, "mixed size 16 has at most 8 logit_rows"),
        ("targets/0/plans/0/size", 4096, "decode size 4096 exceeds args capacity 8"),
        ("targets/0/plans", [], "at least one of phase mixed"),
        ("chat/eos_token_ids", [-1], "eos_token_ids"),
        ("chat/bos_token_id", "x", "bos_token_id"),
        ("targets/0/weights", {}, "weights: must be a list"),
        ("targets/0/weights/0", 5, r"weights\[0\]: must be an object"),
    ],
)
def test_every_wrong_field_is_named(tmp_path: Path, path: str, value: Any, word: str) -> None:
    folder = write_build(tmp_path, changed(path, value))
    with pytest.raises(ArtifactError, match=word) as caught:
        open_artifact(folder)
    assert caught.value.exit_code == 3 and len(str(caught.value)) < 4000


@pytest.mark.parametrize("key", ["abi", "schema"])
@pytest.mark.parametrize("value", [0, 3, "1", True, None])
def test_other_abi_or_schema_is_refused_first(tmp_path: Path, key: str, value: Any) -> None:
    values = {"abi": 1, "schema": 2} | {key: value}
    with pytest.raises(ArtifactError, match=f"{key} is .*build the model again"):
        open_artifact(write_build(tmp_path, values))


def test_all_problems_are_told_together(tmp_path: Path) -> None:
    values = manifest_json()
    values["name"], values["model"]["vocab"] = 7, -1
    target_json(values)["cache"]["page_bytes"] = "x"
    target_json(values)["plans"] = [{}] * 500
    with pytest.raises(ArtifactError) as caught:
        open_artifact(write_build(tmp_path, values))
    text = str(caught.value)
    assert all(word in text for word in ("name:", "model.vocab:", "cache.page_bytes:", "more"))
    assert len(text.splitlines()) == 22


def test_unknown_keys_are_left_to_newer_readers() -> None:
    manifest_of(manifest_json() | {"hashes": {}, "toolchain": [], "later": 1})


def test_a_target_has_sections_of_its_own() -> None:
    values = manifest_json()
    gpu = on_gpu(manifest_json(max_rows=4))["targets"]
    values["targets"] += gpu
    problems: list[str] = []
    cpu, cuda = parse_manifests(values, problems)
    assert not problems and cpu.model is cuda.model
    assert (cpu.sm, cuda.sm, cuda.libraries[0].isa) == (0, 90, "sm_90")
    assert (cpu.args.max_rows, cuda.args.max_rows) == (8, 4) and cuda.counters == 5
    values["targets"] += gpu
    parse_manifests(values, problems)
    assert problems[:2] == [
        "targets: 'sm_90:h200' appears 2 times",
        "targets: 'lib/cuda_sm_90.so' appears 2 times",
    ]
    values["targets"][1]["plans"] = []
    problems.clear()
    parse_manifests(values | {"targets": values["targets"][:2]}, problems)
    assert problems == ["targets[1].plans: must hold at least one of phase mixed"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**64) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def places(values: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = values.items() if isinstance(values, dict) else enumerate(values)
    found = [at]
    for key, value in inner if isinstance(values, dict | list) else ():
        if isinstance(value, dict | list):
            found += places(value, (*at, key))
        found.append((*at, key))
    return [place for place in found if place]


PLACES = places(manifest_json())


def inside(values: Any, key: Any) -> Any:
    """What stands at `key`, None where an earlier change has taken it away."""
    if isinstance(values, dict):
        return values.get(key)
    is_there = isinstance(values, list) and isinstance(key, int) and key < len(values)
    return values[key] if is_there else None


@settings(max_examples=400, deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_fuzzed_manifests_are_read_or_listed(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    values = copy.deepcopy(manifest_json())
    for place, value in changes:
        at: Any = values
        for key in place[:-1]:
            at = inside(at, key)
        if inside(at, place[-1]) is not None or (isinstance(at, dict) and place[-1] in at):
            at[place[-1]] = value
    problems: list[str] = []
    parse_manifests(values, problems)
    assert all(len(problem) < 2500 for problem in problems)


def test_manifest_of_absurd_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelgen_runtime.artifact.read.MAX_MANIFEST_BYTES", 100)
    with pytest.raises(ArtifactError, match="larger than the 100 bytes"):
        read_manifests(write_build(tmp_path) / "manifest.json")


LIBRARIES = tuple(Library(isa, f"{isa}.so", True) for isa in ("avx2", "avx512", "avx512_bf16"))


@pytest.mark.parametrize("isa", ["avx2", "avx512", "avx512_bf16"])
def test_the_best_library_for_each_processor(isa: str) -> None:
    flags = REQUIRED_FLAGS[isa] | {"sse2"}
    assert choose_library(LIBRARIES, flags).isa == isa
    assert choose_library(LIBRARIES[:1], flags).isa == "avx2"
    assert choose_library(LIBRARIES, flags, "avx2").isa == "avx2", "KERNELGEN_ISA may ask for less"
    with pytest.raises(UnsupportedCpuError, match="this artifact has"):
        choose_library(LIBRARIES, flags, "neon")


def test_a_processor_without_avx2_gets_one_clear_line() -> None:
    with pytest.raises(UnsupportedCpuError) as caught:
        choose_library(LIBRARIES, frozenset(("sse2", "avx", "fma")))
    text = str(caught.value)
    assert "it lacks avx2 bmi1 bmi2 f16c movbe" in text and "needs AVX2" in text
    assert caught.value.exit_code == 3 and "\n" not in text
    with pytest.raises(UnsupportedCpuError, match="lacks avx512_bf16"):
        choose_library(LIBRARIES, REQUIRED_FLAGS["avx512"], "avx512_bf16")


def test_flags_of_cpuinfo(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t: none\n")
    assert cpu_flags(file) == {"fpu", "avx2", "fma"}
    assert cpu_flags(tmp_path / "nowhere") == frozenset()
