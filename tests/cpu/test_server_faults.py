"""What a server does when things end: signals, a dead engine, a bad start; nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_stub import following, write_artifact, write_checkpoint
from server_toys import ServerProcess, events, ids_of, wait_gone

pytest.importorskip("uvicorn")

BODY = {"prompt": "w5", "max_tokens": 100, "stream": True}
Start = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Artifact (steps of 10 ms) and weights."""
    folder = tmp_path_factory.mktemp("faults")
    return write_artifact(folder / "toy", step_us=10_000), write_checkpoint(folder / "weights")


@pytest.fixture
def start(built: tuple[Path, Path], tmp_path: Path) -> Iterator[Start]:
    made: list[ServerProcess] = []

    def begin(*options: object) -> ServerProcess:
        server = ServerProcess(*built, tmp_path, *options)
        made.append(server)
        return server

    yield begin
    for server in made:
        pids = server.engine_pids()
        server.close()
        assert all(wait_gone(pid) for pid in pids)


def stream(
    server: ServerProcess, found: list[Any], begun: threading.Event, wait: bool = True
) -> threading.Thread:
    def read() -> None:
        with server.asked("POST", "/v1/completions", BODY) as answer:
            for event in events(answer):
                found.append(event)
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert not wait or begun.wait(30)
    return thread


def text_of(found: list[Any]) -> str:
    return "".join(e["choices"][0]["text"] for e in found if e != "[DONE]")


@pytest.mark.row("B-14")
def test_a_signal_drains_and_loses_nothing(start: Start) -> None:
    server = start("--shutdown-timeout", 30)
    server.wait_bound()
    assert server.get("/health")[0] == 503, "bound before it is ready"
    assert server.post("/v1/completions", {"prompt": "w1"})[0] == 503
    server.wait_ready()
    found: list[list[Any]] = [[] for _ in range(12)]  # more than run at once
    threads = [stream(server, one, threading.Event(), wait=k < 8) for k, one in enumerate(found)]
    time.sleep(0.3)
    engines = server.engine_pids()
    server.signal(signal.SIGTERM)
    time.sleep(0.1)
    status, told = server.post("/v1/completions", {"prompt": "w1"})
    assert status == 503 and "shutting down" in told["error"]["message"]
    assert server.get("/health")[0] == 503
    assert server.wait() == 0
    for thread, one in zip(threads, found, strict=True):
        thread.join()
        assert ids_of(text_of(one)) == following([5], 100)
        assert one[-1] == "[DONE]" and one[-2]["choices"][0]["finish_reason"] == "length"
    assert len(engines) == 1 and wait_gone(engines[0])


@pytest.mark.row("B-14")
def test_without_patience_what_is_under_way_ends_at_once(start: Start) -> None:
    server = start()
    server.wait_ready()
    found: list[Any] = []
    thread = stream(server, found, threading.Event())
    server.signal(signal.SIGINT)
    assert server.wait() == 0
    thread.join()
    ids = ids_of(text_of(found))
    assert ids == following([5], 100)[: len(ids)] and 0 < len(ids) < 100
    assert found[-1] == "[DONE]" and found[-2]["choices"][0]["finish_reason"] == "abort"


@pytest.mark.row("B-14")
def test_a_second_signal_ends_at_once(start: Start) -> None:
    server = start("--shutdown-timeout", 60)
    server.wait_ready()
    found: list[Any] = []
    thread = stream(server, found, threading.Event())
    engines = server.engine_pids()
    server.signal(signal.SIGTERM)
    time.sleep(0.1)
    begin = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0 and time.monotonic() - begin < 1
    assert wait_gone(engines[0], 2)
    thread.join()


def test_a_dead_engine_is_told_and_ends_the_server(start: Start) -> None:
    server = start()
    server.wait_ready()
    found: list[Any] = []
    thread = stream(server, found, threading.Event())
    whole: list[int] = []
    other = threading.Thread(
        target=lambda: whole.append(server.post("/v1/completions", BODY | {"stream": False})[0])
    )
    other.start()
    time.sleep(0.2)
    os.kill(server.engine_pids()[0], signal.SIGKILL)
    thread.join()
    assert found[-1] == "[DONE]" and found[-2]["error"]["code"] == 500
    assert sum("error" in event for event in found[:-1]) == 1
    other.join()
    assert whole == [500]
    assert server.get("/health")[0] == 503
    assert server.post("/v1/completions", BODY)[0] == 503
    assert server.wait() == 1
    assert "the engine is dead" in server.log


def test_an_engine_that_hangs_is_given_up(start: Start) -> None:
    """It is alive and says nothing: streams get one error, and nothing is left behind."""
    server = start("--watchdog-timeout", 1)
    server.wait_ready()
    found: list[Any] = []
    thread = stream(server, found, threading.Event())
    (engine,) = server.engine_pids()
    os.kill(engine, signal.SIGSTOP)
    thread.join()
    assert found[-1] == "[DONE]" and sum("error" in event for event in found[:-1]) == 1
    assert server.get("/health")[0] == 503
    assert server.wait() == 1 and wait_gone(engine)
    assert "no step has ended for 1 s (--watchdog-timeout): 1 requests" in server.log


@pytest.mark.row("R-091")
def test_nothing_is_compiled_once_it_is_ready(start: Start) -> None:
    """No compiler is a child of the engine, none is mapped into it, before or behind a request."""
    server = start()
    server.wait_ready()
    (engine,) = server.engine_pids()
    for _ in range(2):
        names = Path(f"/proc/{engine}/maps").read_text()
        assert "triton" not in names and "nvrtc" not in names
        assert not Path(f"/proc/{engine}/task/{engine}/children").read_text()
        assert server.post("/v1/completions", BODY | {"stream": False, "max_tokens": 3})[0] == 200


def test_an_idle_engine_may_be_silent(start: Start) -> None:
    server = start("--watchdog-timeout", 0.2)
    server.wait_ready()
    time.sleep(0.5)
    assert server.post("/v1/completions", BODY | {"stream": False, "max_tokens": 3})[0] == 200


def test_the_engine_does_not_outlive_a_killed_server(start: Start) -> None:
    server = start()
    server.wait_bound()
    while not (engines := server.engine_pids()):
        time.sleep(0.01)
    (engine,) = engines
    server.process.kill()
    assert wait_gone(engine, 5)


def test_a_bad_start_is_one_line_and_a_code(start: Start, built: tuple[Path, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = start("--port", taken.getsockname()[1])
        assert busy.wait() == 2
    (line,) = busy.log.splitlines()
    assert line.startswith("error: port ") and "choose another with --port" in line
    short = start("--kv-cache-memory-bytes", 100)
    assert short.wait() == 2
    last = short.log.splitlines()[-1]
    assert last.startswith("error: ") and "Traceback" not in short.log
