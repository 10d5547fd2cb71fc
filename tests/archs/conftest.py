"""Every architecture there is, the out-of-tree one included, and seeded weights for it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ORACLE = HERE.parent / "oracle"
for folder in (HERE, ORACLE):  # the toy's distribution; the seeded weights of the recorded cases
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

ENTRY_POINT = "[kernelgen.architectures]\ntoy_fifth = toy_fifth:ARCHITECTURE\n"


@pytest.fixture
def toy_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy as an installed distribution: metadata on the path, as pip would leave it."""
    info = tmp_path / "site" / "toy_fifth-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-fifth\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    monkeypatch.syspath_prepend(str(info.parent))


@dataclass(frozen=True)
class Subject:
    """One architecture with its tiny config."""

    architecture: Any
    config: Mapping[str, Any]

    @property
    def fields(self) -> Mapping[str, Any]:
        """The object of the config that describes the decoder."""
        return self.config.get("text_config", self.config)

    def changed(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The config with another object in that place."""
        if "text_config" in self.config:
            return {**self.config, "text_config": dict(fields)}
        return dict(fields)

    @property
    def spec(self) -> Any:
        from kernelgen.spec.config import ConfigFile

        return self.architecture.read(ConfigFile("tiny.json", self.config))


def folders() -> list[Path]:
    """Architecture folders, by listing."""
    import kernelgen.archs

    own = Path(kernelgen.archs.__file__).parent
    return [*sorted(p.parent for p in own.glob("*/tiny.json")), HERE / "toy_fifth"]


def subject_of(folder: Path) -> Subject:
    package = "toy_fifth" if folder.parent == HERE else f"kernelgen.archs.{folder.name}"
    module = importlib.import_module(package)
    return Subject(module.ARCHITECTURE, json.loads((folder / "tiny.json").read_text()))


@pytest.fixture(params=folders(), ids=lambda p: p.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    return subject_of(request.param)
