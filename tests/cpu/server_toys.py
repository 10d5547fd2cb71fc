"""A server process around the compiled stub: started, asked, signalled, and what it has said."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from runtime_fakes import environment
from runtime_stub import following

PATIENCE = 60.0
WORD = re.compile(r"w(\d+)")


def words(ids: list[int]) -> str:
    """The text of ids, as the toy's tokenizer has it behind other text."""
    return "".join(f" w{i}" for i in ids)


def ids_of(text: str) -> list[int]:
    """The ids that a text was made of."""
    return [int(word) for word in WORD.findall(text)]


def chat_answer(content: str, count: int) -> str:
    """What the toy says to one message."""
    return words(following([1, *ids_of(content), 2], count))


class ServerProcess:
    """A running `serve`."""

    def __init__(self, artifact: Path, weights: Path, folder: Path, *options: object, **env: str):
        self.log_path = folder / "server.log"
        argv = [sys.executable, "-m", "kernelgen_runtime", "serve", artifact]
        argv += ["--weights", weights, "--port", 0, "--threads", 1, *options]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                list(map(str, argv)), stdout=log, stderr=log, env=environment() | env
            )
        self.port = 0

    @property
    def log(self) -> str:
        """Everything it has said."""
        return self.log_path.read_text(errors="replace")

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def wait_bound(self) -> None:
        """Wait until its port is known."""
        self._until(lambda: re.search(r"http://127\.0\.0\.1:(\d+) is bound", self.log))
        found = re.search(r"http://127\.0\.0\.1:(\d+) is bound", self.log)
        assert found is not None
        self.port = int(found[1])

    def wait_ready(self) -> None:
        """Wait until requests can come."""
        self.wait_bound()
        self._until(lambda: self.get("/health")[0] == 200)

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """One GET: status and body."""
        with self.asked("GET", path, None, **headers) as answer:
            return answer.status, answer.read()

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """One POST of JSON (or of bytes as they are): status and what the JSON holds."""
        with self.asked("POST", path, body, **headers) as answer:
            data = answer.read()
            return answer.status, json.loads(data) if data else None

    @contextmanager
    def asked(self, method: str, path: str, body: Any, **headers: str) -> Iterator[HTTPResponse]:
        """A request whose answer is read by the caller."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, data, {"content-type": "application/json"} | names)
            yield connection.getresponse()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric, by its name without prefix and some of its labels."""
        total = 0.0
        for line in self.get("/metrics")[1].decode().splitlines():
            head, _, value = line.rpartition(" ")
            wanted = [f'{key}="{label}"' for key, label in labels.items()]
            is_it = head.split("{")[0].endswith(f":{name}") and not line.startswith("#")
            if is_it and all(word in head for word in wanted):
                total += float(value)
        return total

    def engine_pids(self) -> list[int]:
        """Process ids of its children."""
        pid = self.process.pid
        try:
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            return []
        return [int(word) for word in text.split()]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; return the exit code."""
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """End it, however it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _until(self, holds: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def wait_gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process is gone within some time."""
    end = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


def events(answer: HTTPResponse) -> Iterator[Any]:
    """The data of server-sent events; "[DONE]" as it is."""
    for line in answer:
        if line.startswith(b"data: "):
            text = line[6:].strip().decode()
            yield text if text == "[DONE]" else json.loads(text)
