"""The measurer of GPUs with torch.cuda and the driver replaced: all of it runs, untimed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu_trials import DEVICE
from test_tune_reference import group, toy

from kernelgen.core.errors import UnsupportedError
from kernelgen.tune import cuda_measurer, driver
from kernelgen.tune.bundle import Bundle, Group
from kernelgen.tune.cuda_measurer import CudaMeasurer
from kernelgen.tune.facts import device_facts
from kernelgen.tune.stage import Scene
from kernelgen.tune.verdict import Verdict


class Stream:
    """Work that is done at once."""

    cuda_stream = 0

    def wait_stream(self, other: Stream) -> None: ...

    def synchronize(self) -> None: ...


class Event:
    """A moment of this machine's clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        return max(1e-3, (other.at - self.at) * 1e3)


class Graph:
    """Records nothing."""

    def capture_begin(self, capture_error_mode: str = "") -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...


class Library:
    """A driver that accepts everything and counts it."""

    def __init__(self, calls: Counter[str]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            return 0

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of the driver by name."""
    counted: Counter[str] = Counter()
    for name, value in {
        "is_available": lambda: True,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: "NVIDIA H200",
        "mem_get_info": lambda *_: (100 << 30, 140 << 30),
        "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "synchronize": lambda *_: None,
        "stream": lambda _: contextlib.nullcontext(),
        "default_stream": Stream,
        "current_stream": Stream,
        "current_device": lambda: 0,
        "get_device_properties": lambda _: SimpleNamespace(
            pci_domain_id=0, pci_bus_id=1, pci_device_id=0
        ),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda _: Library(counted))
    monkeypatch.setattr(cuda_measurer, "_SETTLE_S", 0.0)
    monkeypatch.setattr(cuda_measurer, "_COPY_BYTES", 1 << 16)
    monkeypatch.setattr(CudaMeasurer, "_products", lambda self, seconds: None)
    return counted


def measurer(*groups: Group) -> CudaMeasurer:
    """Over groups that nothing has compiled."""
    facts = replace(device_facts(DEVICE), l2_bytes=1 << 16)
    model = toy("decode:2", "attention_decode").facts
    made = Bundle(1, "kernelgen 0", "w" * 64, "quick", facts, {}, (model,), groups)
    file: Any = SimpleNamespace(bundle=made, code=lambda digest: b"code", path="bundle")
    return CudaMeasurer(file, "cpu")


def attention(elsewhere: tuple[int, ...]) -> Group:
    made = toy("decode:2", "attention_decode")
    return replace(group(made, made.planned[0]), elsewhere=elsewhere)


@pytest.mark.parametrize("family", ["rows", "skinny", "head_sample", "attention_decode"])
def test_a_group_is_set_up_checked_and_timed(
    family: str, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = toy("decode:2" if family != "skinny" else "decode:8", family)
    shown = group(made, made.planned[0])
    one = measurer(shown)
    assert one.settle().canary.gb_s > 0
    one.open(shown)
    sample = one.coarse(shown, shown.candidates[0])
    assert sample.us == () and sample.share > 1 and sample.note, "nothing was written"
    monkeypatch.setattr(CudaMeasurer, "_check", lambda self, a, b: Verdict(0.5))
    assert len(one.coarse(shown, shown.candidates[0]).us) == 1
    assert len(one.fine(shown, shown.candidates[0], 9).us) == 9
    assert calls["cuLaunchKernelEx"] > 4 and calls["cuModuleLoadData"] > 0


def test_other_contexts_are_timed_where_there_is_room(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = attention((9, 160))
    one = measurer(shown)
    monkeypatch.setattr(CudaMeasurer, "_check", lambda self, a, b: Verdict(0.5))
    sample = one.coarse(shown, shown.candidates[0])
    assert len(sample.elsewhere) == 2 and all(us and us > 0 for us in sample.elsewhere)
    assert one.shown is not None
    lengths = [there[0].requests.length for there in one.shown.elsewhere if there]
    assert lengths == [9, 160]
    pools = {
        there[0].pool.data_ptr()
        for there in one.shown.elsewhere
        if there and there[0].pool is not None
    }
    assert one.shown.scene.pool is not None
    assert pools == {one.shown.scene.pool.data_ptr()}, "all contexts share one pool"
    pages = [set(one.shown.scene.pages.ravel().tolist())]
    pages += [set(there[0].pages.ravel().tolist()) for there in one.shown.elsewhere if there]
    assert sum(map(len, pages)) == len(set.union(*pages)), "and no page of it"
    assert max(set.union(*pages)) < len(one.shown.scene.pool)


def test_a_context_without_room_is_left_out(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = attention((9, 160))
    one = measurer(shown)
    model = one.file.bundle.models[0]
    planned, short = (
        Scene.pages_needed(
            one.stage, replace(shown, extents=replace(shown.extents, context=c)), model
        )
        for c in (shown.extents.context, 9)
    )
    room = (2 + planned + short) * model.page_bytes
    monkeypatch.setattr(cuda_measurer, "_SPARE_BYTES", (100 << 30) - room)
    monkeypatch.setattr(CudaMeasurer, "_check", lambda self, a, b: Verdict(0.5))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (100 << 30, 140 << 30))
    near, far = one.fine(shown, shown.candidates[0], 3).elsewhere
    assert near is not None and far is None


def test_every_context_is_checked(calls: Counter[str]) -> None:
    shown = attention((9, 160))
    one = measurer(shown)
    one.open(shown)
    before = calls["cuLaunchKernelEx"]
    assert one.coarse(shown, shown.candidates[0]).share > 1
    passes = len(shown.candidates[0].launches)
    assert calls["cuLaunchKernelEx"] - before == 3 * passes


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"get_device_capability": lambda *_: (8, 0)}, "sm_80"),
        ({"get_device_name": lambda *_: "NVIDIA H20"}, "H20"),
    ],
)
def test_another_device_is_refused(
    what: dict[str, Any], told: str, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in what.items():
        monkeypatch.setattr(torch.cuda, name, value)
    with pytest.raises(UnsupportedError, match=told):
        measurer()
