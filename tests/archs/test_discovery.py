"""Discovery: folders and entry points, and what a config that fits none or two of them gets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import HERE, folders, subject_of

from kernelgen.archs import registry
from kernelgen.core.dtypes import BFLOAT16, FLOAT32
from kernelgen.core.errors import KernelgenError, UnsupportedError, UsageError
from kernelgen.ir.parameters import parameters
from kernelgen.ir.verify import verify_graph
from kernelgen.spec.config import ConfigFile, read_config


def test_folders_are_found_by_listing() -> None:
    own = [f.name for f in folders() if f.parent != HERE]
    assert sorted(registry.architectures()) == own
    for name, architecture in registry.architectures().items():
        assert architecture.folder.name == architecture.name == name
        for file in ("NOTES.md", "reference.py", "tiny.json", "quirks.json"):
            assert (architecture.folder / file).is_file(), f"{name} has no {file}"


def test_tiny_configs_are_claimed_by_their_own_folder(toy_installed: None) -> None:
    for folder in folders():
        found = registry.find_architecture(read_config(folder / "tiny.json"))
        assert found.name == folder.name


@pytest.mark.row("R-037")
def test_out_of_tree_architecture_comes_through_the_entry_point(toy_installed: None) -> None:
    config = registry.builtin_config("toy-fifth-tiny")
    architecture = registry.find_architecture(config)
    spec = architecture.read(config)
    graph = architecture.lower(spec, BFLOAT16)
    verify_graph(graph)
    assert spec.architecture == "toy_fifth"
    assert len(architecture.checkpoint(spec, graph)) == len(parameters(graph))


def test_without_its_distribution_the_toy_is_unknown() -> None:
    with pytest.raises(UnsupportedError, match="'toy_fifth' is not supported"):
        registry.find_architecture(read_config(HERE / "toy_fifth" / "tiny.json"))


@pytest.mark.row("R-061")
@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["OtherForCausalLM"], "model_type": "llama"}, "'OtherForCausalLM'"),
        ({"model_type": "other\n{{7*7}}"}, r"'other\n{{7*7}}'"),
        ({"architectures": [3, None]}, "3, None"),
        ({"architectures": [], "model_type": ["llama"]}, "['llama']"),
    ],
)
def test_unknown_architecture_is_named_with_what_exists(config, named) -> None:
    with pytest.raises(UnsupportedError) as raised:
        registry.find_architecture(ConfigFile("config.json", config))
    message = str(raised.value)
    assert named in message and "\n" not in message
    assert all(name in message for name in registry.architectures())
    assert raised.value.exit_code == 3


def test_a_config_that_names_no_model() -> None:
    with pytest.raises(UsageError, match="neither architectures nor model_type"):
        registry.find_architecture(ConfigFile("config.json", {"hidden_size": 4}))


def _install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> None:
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[kernelgen.architectures]\n{name} = {name}:ARCHITECTURE\n"
    )
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_two_that_claim_one_config_are_both_named(tmp_path, monkeypatch, toy_installed) -> None:
    body = (
        "from dataclasses import replace\nimport toy_fifth\n"
        "ARCHITECTURE = replace(toy_fifth.ARCHITECTURE, name='toy_rival')\n"
    )
    _install(tmp_path, monkeypatch, "toy_rival", body)
    with pytest.raises(KernelgenError, match="toy_fifth and toy_rival both claim"):
        registry.find_architecture(read_config(HERE / "toy_fifth" / "tiny.json"))


def test_one_name_twice(tmp_path, monkeypatch, toy_installed) -> None:
    body = "import toy_fifth\nARCHITECTURE = toy_fifth.ARCHITECTURE\n"
    _install(tmp_path, monkeypatch, "toy_copy", body)
    with pytest.raises(KernelgenError, match="architecture toy_fifth is there already"):
        registry.architectures()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError('no\\nluck')", "cannot be loaded: RuntimeError: 'no\\\\nluck'"),
        ("ARCHITECTURE = 7", "is a int"),
        ("", "cannot be loaded: AttributeError"),
    ],
)
def test_broken_entry_points_name_their_distribution(tmp_path, monkeypatch, body, message) -> None:
    _install(tmp_path, monkeypatch, "toy_broken", body)
    with pytest.raises(KernelgenError, match=message) as raised:
        registry.architectures()
    assert "entry point toy_broken = toy_broken:ARCHITECTURE of toy_broken" in str(raised.value)


def test_names_are_checked_identifiers() -> None:
    architecture = subject_of(folders()[0]).architecture
    for name in ("", "Upper", "a-b", "a;b", "a\nb", "x" * 65):
        with pytest.raises(ValueError, match="does not match"):
            replace(architecture, name=name)


@pytest.mark.parametrize("name", registry.builtin_models())
def test_builtin_models_lower(name: str) -> None:
    config = registry.builtin_config(name)
    architecture = registry.find_architecture(config)
    spec = architecture.read(config)
    for activation in (FLOAT32, BFLOAT16):
        graph = architecture.lower(spec, activation)
        verify_graph(graph)
    assert architecture.checkpoint(spec, graph)
    assert name == name.lower()


def test_unknown_builtin_lists_the_names() -> None:
    with pytest.raises(UsageError) as raised:
        registry.builtin_config("no-such-model")
    assert all(name in str(raised.value) for name in registry.builtin_models())


def test_reading_configs_imports_no_torch() -> None:
    code = (
        "import sys; from kernelgen.archs.registry import *; from kernelgen.core.dtypes import *\n"
        "for n in builtin_models():\n"
        "    c = builtin_config(n); a = find_architecture(c); s = a.read(c)\n"
        "    a.checkpoint(s, a.lower(s, BFLOAT16))\n"
        "sys.exit(' '.join(m for m in ('torch', 'numpy', 'triton') if m in sys.modules) or 0)"
    )
    root = Path(registry.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_published_sizes_have_the_published_parameter_counts() -> None:
    """Millions of parameters of the cards; a wrong size in a config would show here."""
    published = json.loads((HERE / "published_sizes.json").read_text())
    assert set(published) == set(registry.builtin_models())
    for name, millions in published.items():
        config = registry.builtin_config(name)
        architecture = registry.find_architecture(config)
        spec = architecture.read(config)
        count = 0
        for rule in architecture.checkpoint(spec, architecture.lower(spec, BFLOAT16)):
            elements = 1
            parameter = rule.of(torch.empty(rule.shape, device="meta"))
            for dim in parameter.shape:
                elements *= dim
            count += elements
        assert count / 1e6 == pytest.approx(millions, abs=0.06), name
