"""Two replicas of a build behind Ray Serve, on this machine: asked at once, one engine killed.

    python bench/ray_serve.py BUILD --weights DIR [options of `kernelgen serve`]

Needs the extra [ray] with `ray[serve]`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import ray
from kernelgen_runtime.server.ray_serve import application
from ray import serve

URL = "http://127.0.0.1:8000"
PATIENCE = 120.0


def ask(prompt: str) -> tuple[str, str]:
    """One completion: its id and its text."""
    body = {"prompt": prompt, "max_tokens": 16, "temperature": 0}
    request = Request(f"{URL}/v1/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urlopen(request, timeout=PATIENCE) as answer:
        told = json.load(answer)
    return told["id"], told["choices"][0]["text"]


def engines() -> list[int]:
    """Process ids of the engines below this process: others of this machine are not ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, pid = path.read_bytes().split(b"\0"), int(path.parent.name)
        except OSError:
            continue
        if b"kernelgen_runtime.server.engine_main" in words and is_below(pid):
            found.append(pid)
    return found


def is_below(pid: int) -> bool:
    """Whether this process started that one, or the one that did, and so on."""
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid == os.getpid():
            return True
    return False


def wait_for_engines(count: int, without: int = 0) -> None:
    """Wait until so many engines run, none of them the process `without`."""
    end = time.monotonic() + PATIENCE
    while len(found := engines()) < count or without in found:
        if time.monotonic() > end:
            raise TimeoutError(f"{len(found)} engines, {count} are wanted")
        time.sleep(0.2)


def main(argv: list[str]) -> int:
    """Run the example; 0 where everything went as it should."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        options = {
            "num_replicas": 2,
            "health_check_period_s": 1,
            "ray_actor_options": {"num_cpus": 1},
        }
        serve.run(application(argv, **options))
        wait_for_engines(2)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, ["The capital of France is"] * 16))
        texts = {text for _, text in answers}
        print(f"16 answers, {len(texts)} text: {texts.pop()!r}")
        if texts or len({ident for ident, _ in answers}) != 16:
            return 1
        victim = engines()[0]
        os.kill(victim, signal.SIGKILL)
        wait_for_engines(2, without=victim)
        refused, end = 0, time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                ask("The capital of Spain is")
                break
            except HTTPError:
                refused += 1
                time.sleep(0.2)
        print(
            f"an engine was killed; another replica took its place ({refused} refusals meanwhile)"
        )
        return 0
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
