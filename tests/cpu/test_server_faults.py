"""What a server does when things end: signals, a dead engine, a bad start; nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_lost_while_draining_is_no_clean_end(
    start: Start, number: signal.Signals
) -> None:
    """What was accepted is not all served: its streams are told, and the code says so."""
    server = start("--shutdown-timeout", 60, "--watchdog-timeout", 1)
    server.wait_ready()
    found: list[Any] = []
    thread = stream(server, found, threading.Event())
    (engine,) = server.engine_pids()
    server.signal(signal.SIGTERM)
    time.sleep(0.1)
    os.kill(engine, number)
    assert server.wait() == 1 and wait_gone(engine)
    thread.join()
    assert found[-1] == "[DONE]" and sum("error" in event for event in found[:-1]) == 1
    assert "error: the engine is dead: " in server.log


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
    begin = time.monotonic()
    assert server.wait() == 1 and wait_gone(engine)
    assert time.monotonic() - begin < 4, "what hangs is not waited for"
    told = "not answered for 1 s (--watchdog-timeout): after its last step 1 requests were running"
    assert told in server.log


def test_clients_that_leave_do_not_hide_a_hang(start: Start) -> None:
    """None waits for as long as the limit; together they do not put it off."""
    server = start("--watchdog-timeout", 1.5)
    server.wait_ready()
    (engine,) = server.engine_pids()
    os.kill(engine, signal.SIGSTOP)
    end = time.monotonic() + 15
    while server.process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError, HTTPException):
            connection = HTTPConnection("127.0.0.1", server.port, timeout=0.3)
            connection.request("POST", "/v1/completions", json.dumps(BODY))
            connection.getresponse()
        connection.close()
    assert server.wait() == 1 and wait_gone(engine)
    assert "not answered for 1.5 s" in server.log


def test_a_server_that_stood_still_itself_blames_nobody(start: Start) -> None:
    server = start("--watchdog-timeout", 1)
    server.wait_ready()
    (engine,) = server.engine_pids()
    for pid in (server.process.pid, engine):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    for pid in (server.process.pid, engine):
        os.kill(pid, signal.SIGCONT)
    assert server.post("/v1/completions", BODY | {"stream": False, "max_tokens": 3})[0] == 200
    time.sleep(1.5)
    assert server.get("/health")[0] == 200


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


def test_long_steps_may_take_what_the_limit_allows(tmp_path: Path) -> None:
    """Steps of 0.7 s, and idle seconds between them, below a limit of 2 s."""
    slow = write_artifact(tmp_path / "slow", step_us=700_000)
    server = ServerProcess(
        slow, write_checkpoint(tmp_path / "weights"), tmp_path, "--watchdog-timeout", 2
    )
    try:
        server.wait_ready()
        time.sleep(2.5)
        assert server.post("/v1/completions", BODY | {"stream": False, "max_tokens": 4})[0] == 200
    finally:
        server.close()


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
