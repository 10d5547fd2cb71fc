"""Each architecture's `quirks.json`: config spellings, what they mean or why they are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import folders, subject_of

from kernelgen.core.errors import KernelgenError
from kernelgen.core.jsonio import to_json
from kernelgen.spec.config import ConfigFile

CASES = [
    pytest.param(folder, case, id=f"{folder.name}: {case['case']}")
    for folder in folders()
    for case in json.loads((folder / "quirks.json").read_text())
]


def look_up(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


@pytest.mark.row("R-051")
@pytest.mark.row("R-060")
@pytest.mark.parametrize(("folder", "case"), CASES)
def test_quirk(folder, case) -> None:
    subject = subject_of(folder)
    kept = {k: v for k, v in subject.fields.items() if k not in case.get("drop", ())}
    changed = subject.changed({**kept, **case.get("set", {})})
    config = ConfigFile("config.json", {**changed, **case.get("outside", {})})
    if "error" in case:
        with pytest.raises(KernelgenError) as raised:
            subject.architecture.read(config)
        assert case["error"] in str(raised.value)
        assert str(raised.value).startswith("config.json: ")
        assert raised.value.exit_code == case["exit"]
        return
    spec = to_json(subject.architecture.read(config))
    found = {path: look_up(spec, path) for path in case["spec"]}
    assert found == case["spec"]
