"""The artefact store: found again, repaired, cleaned, and shared by builds at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelgen.compile.store import Store, default_root
from kernelgen.core.digest import digest_bytes
from kernelgen.core.errors import UsageError

KEY = digest_bytes("key")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_put_then_get(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "unit.o"
    source.write_bytes(b"object")
    with store.session():
        assert store.get(KEY) is None
        entry = store.put(KEY, {"unit.o": source, "unit.json": b"{}"}, label="unit")
        found = store.get(KEY)
    assert found == entry and found is not None
    assert found.path("unit.o").read_bytes() == b"object"
    assert found.path("unit.json").read_bytes() == b"{}"


def test_second_put_keeps_the_first(store: Store) -> None:
    with store.session():
        first = store.put(KEY, {"a": b"1"}, label="")
        again = store.put(KEY, {"a": b"1"}, label="")
    assert first.folder == again.folder and store.info().entries == 1


@pytest.mark.parametrize("damage", ["flip", "cut", "lose", "record", "empty record", "other key"])
def test_damage_is_found_and_rebuilt(store: Store, damage: str) -> None:
    with store.session():
        entry = store.put(KEY, {"a": b"content"}, label="")
    file, record = entry.path("a"), entry.folder / "entry.json"
    if damage == "flip":
        file.write_bytes(b"Content")
    elif damage == "cut":
        file.write_bytes(b"cont")
    elif damage == "lose":
        file.unlink()
    elif damage == "record":
        record.unlink()
    elif damage == "empty record":
        record.write_bytes(b"")
    else:
        record.write_text(record.read_text().replace(KEY, digest_bytes("other")))
    with store.session():
        assert store.get(KEY) is None
        assert store.info().entries == 0
        store.put(KEY, {"a": b"content"}, label="")
        assert store.get(KEY) is not None


def test_clean_by_age_counts_last_use(store: Store) -> None:
    with store.session():
        old = store.put(digest_bytes("old"), {"a": b"1"}, label="")
        used = store.put(digest_bytes("used"), {"a": b"2"}, label="")
        for entry in (old, used):
            os.utime(entry.folder / "entry.json", (1, 1))
        assert store.info().oldest_use_s > 1e8
        assert store.get(digest_bytes("used"))
    removed = store.clean(max_age_s=3600)
    assert removed.entries == 1 and removed.bytes > 0
    with store.session():
        assert store.get(digest_bytes("old")) is None
        assert store.get(digest_bytes("used"))
    assert store.clean().entries == 1
    assert store.info().entries == 0


def test_clean_and_info_of_an_absent_store(store: Store) -> None:
    assert store.clean().entries == store.info().entries == 0
    assert not store.root.exists()


def test_clean_waits_for_a_build(store: Store) -> None:
    code = (
        "import sys,time; from pathlib import Path; from kernelgen.compile.store import Store\n"
        "s = Store(Path(sys.argv[1]))\n"
        "with s.session():\n"
        "    e = s.put('ab'*32, {'a': b'1'}, label=''); print('in', flush=True); time.sleep(0.5)\n"
        "    assert e.path('a').exists()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, store.root], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "in\n"
    start = time.monotonic()
    assert store.clean().entries == 1
    assert time.monotonic() - start > 0.2
    assert child.wait() == 0


def test_next_session_removes_what_a_killed_build_left(store: Store) -> None:
    left = store.root / "tmp" / "dead"
    left.mkdir(parents=True)
    with store.session():
        assert not left.exists()
        with store.stage() as stage, store.session():
            assert stage.exists()  # not alone: nothing is taken away


def test_place_of_the_store(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELGEN_CACHE", str(tmp_path / "own"))
    assert default_root() == tmp_path / "own"
    monkeypatch.delenv("KERNELGEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg" / "kernelgen"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_root() == Path.home() / ".cache" / "kernelgen"


def test_unusable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file"), Store(tmp_path / "file").session():
        pass
