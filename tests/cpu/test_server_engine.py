"""The engine process's loop, spoken to by messages alone; it waits for nobody."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.sample.structured import Structured
from runtime_fakes import HYBRID, VOCAB, oracle
from test_runtime_llm import open_toy
from test_runtime_nan import DAMAGED, damaged_toy

msgspec = pytest.importorskip("msgspec")

from kernelgen_runtime.server import wire  # noqa: E402
from kernelgen_runtime.server.engine_loop import EngineLoop  # noqa: E402
from kernelgen_runtime.server.pipe import EnginePipe  # noqa: E402

EOS = frozenset((VOCAB - 1,))
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


class Peer:
    """The other end of a loop that runs in a thread."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        ours, theirs = socket.socketpair()
        ours.settimeout(20)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        self.pipe = EnginePipe(theirs)
        self.socket, self._splitter = ours, wire.Splitter()
        self._unread: list[Any] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            EngineLoop(self.llm, self.pipe).run()
        except BaseException as error:
            self.error = error

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.socket.sendall(wire.framed(message))

    def read(self) -> Any:
        while not self._unread:
            self._unread = [
                wire.read_to_api(p) for p in self._splitter.feed(self.socket.recv(9999))
            ]
        return self._unread.pop(0)

    def until_ended(self, *keys: int) -> dict[int, list[wire.Update]]:
        """Updates by key, until each of `keys` has ended."""
        found: dict[int, list[wire.Update]] = {}
        left = set(keys)
        while left:
            message = self.read()
            for update in message.updates if isinstance(message, wire.Stepped) else ():
                found.setdefault(update.key, []).append(update)
                if update.end is not None:
                    left.remove(update.key)
        return found

    def close(self) -> None:
        self.socket.close()
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer(open_toy(max_num_seqs=4, max_model_len=200))
    yield made
    made.close()


def wanted(prompt: list[int], count: int) -> list[int]:
    return oracle(prompt, len(prompt) + count, HYBRID, EOS)


def test_tokens_come_as_they_are_made(peer: Peer) -> None:
    peer.send(*(wire.Submit(k, [k, 2, 3], GREEDY) for k in range(6)))
    found = peer.until_ended(*range(6))
    for key, updates in found.items():
        ids = [i for update in updates for i in update.ids]
        assert ids == wanted([key, 2, 3], 12)
        assert updates[0].first is not None and all(u.first is None for u in updates[1:])
        reason = "stop" if ids[-1] in EOS else "length"
        assert updates[-1].end == wire.End(reason)


def test_what_cannot_be_served_is_refused(peer: Peer) -> None:
    peer.send(wire.Submit(1, [VOCAB], GREEDY), wire.Submit(2, [1] * 200, GREEDY))
    peer.send(wire.Submit(3, [1], SamplingParams(logprobs=1)), wire.Submit(4, [5], GREEDY))
    told = {m.key: m.message for m in (peer.read() for _ in range(3))}
    assert "not a token id" in told[1] and "max_model_len" in told[2] and "built without" in told[3]
    assert peer.read() == wire.Accepted([4])
    assert peer.until_ended(4)


@pytest.mark.row("B-10")
def test_aborted_requests_give_their_pages_back(peer: Peer) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
    peer.send(*(wire.Submit(k, [k], long) for k in range(4)))
    for _ in range(5):
        peer.read()
    peer.send(wire.Abort([0, 1, 2, 99]))
    peer.send(wire.Submit(7, [7], GREEDY))
    found = peer.until_ended(3, 7)
    assert [i for u in found[7] for i in u.ids] == wanted([7], 12)
    assert not any(update.end for key in (0, 1, 2) for update in found.get(key, []))
    scheduler = peer.llm.engine.scheduler
    assert not scheduler.has_work
    assert scheduler.cache.pool.free_pages == scheduler.cache.pool.pages - 1


def test_it_never_waits_for_a_reader(peer: Peer) -> None:
    """Nobody reads; all work is done all the same, and is there afterwards."""
    long = SamplingParams(temperature=0.0, max_tokens=190, ignore_eos=True)
    keys = range(8)
    for key in keys:
        peer.send(wire.Submit(key, [key], long))
    end = time.monotonic() + 60
    while peer.llm.engine.meter.tokens < 8 * 189 - 16:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert peer.pipe.unsent > 10_000, "the socket is full, and the loop has gone on"
    found = peer.until_ended(*keys)
    for key in keys:
        ids = [i for update in found[key] for i in update.ids]
        assert ids == oracle([key], 191, HYBRID)


def test_a_bad_row_ends_one_request() -> None:
    peer = Peer(damaged_toy())
    peer.send(wire.Submit(1, [DAMAGED], GREEDY), wire.Submit(2, [5, 6], GREEDY))
    found = peer.until_ended(1, 2)
    end = found[1][-1].end
    assert end is not None and end.finish_reason == "error" and "NaN" in end.error
    assert found[2][-1].end is not None and found[2][-1].end.finish_reason != "error"
    peer.close()


def test_three_failed_steps_end_it(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelgen_runtime.errors import LaunchError

    def broken(*_: object) -> None:
        raise LaunchError("out of order")

    monkeypatch.setattr(peer.llm.library, "step", broken)
    for key in range(3):
        peer.send(wire.Submit(key, [5], GREEDY))
        if key < 2:
            (update,) = peer.until_ended(key)[key]
            assert update.end is not None and update.end.finish_reason == "error"
    peer._thread.join(20)
    assert isinstance(peer.error, LaunchError)


@pytest.mark.row("R-168")
def test_the_protocol_is_as_recorded(pytestconfig: pytest.Config) -> None:
    """A front end of others relies on it: a change is a new version, and recorded on purpose."""
    path = Path(__file__).parents[1] / "golden" / "server_protocol.json"
    samples: list[Any] = [
        wire.Submit(7, [1, 2], SamplingParams(stop_token_ids=(3,), seed=5), 1, "salt"),
        wire.Abort([7, 8]),
        wire.Accepted([7]),
        wire.Refused(7, "why"),
        wire.Stepped(
            1.5, [wire.Update(7, [4], wire.First(0, 1.0, 1.25), wire.End("stop", 3))], wire.Load(1)
        ),
        wire.Ping(),
        wire.Pong(),
        wire.Dead("why", 1),
    ]
    decode = msgspec.msgpack.Decoder().decode
    told = wire.schema() | {"samples": [decode(wire.framed(sample)[4:]) for sample in samples]}
    text = json.dumps(told, indent=1, sort_keys=True) + "\n"
    if pytestconfig.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text()


def test_frames_are_found_in_any_pieces() -> None:
    messages = [wire.Abort([k] * k) for k in range(40)]
    data = b"".join(map(wire.framed, messages))
    for size in (1, 3, 7, 64, len(data)):
        splitter, found = wire.Splitter(), []
        for at in range(0, len(data), size):
            found += map(wire.read_to_engine, splitter.feed(data[at : at + size]))
        assert found == messages
    with pytest.raises(ValueError, match="a message of"):
        wire.Splitter().feed(b"\xff\xff\xff\xff")


def test_grammars_are_prepared_beside_the_first_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, from the start: traffic that never pauses does not put it off."""
    prepared, go = threading.Event(), threading.Event()
    monkeypatch.setattr(LLM, "prepare_grammars", lambda llm: prepared.set() or go.wait(20))
    peer = Peer(open_toy(max_num_seqs=4, max_model_len=200))
    try:
        assert prepared.wait(10)
        peer.send(wire.Submit(1, [1, 2, 3], GREEDY))
        assert peer.until_ended(1)
    finally:
        go.set()
        peer.close()


@pytest.mark.row("B-10")
def test_a_request_may_leave_while_its_grammar_is_compiled(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others go on meanwhile, it counts as waiting, and nothing is told of it any more."""
    compiling, go = threading.Event(), threading.Event()
    monkeypatch.setattr(EngineLoop, "_check_grammar", lambda *_: compiling.set() or go.wait(20))
    bound = SamplingParams(structured=Structured("regex", "[ab]"))
    peer.send(wire.Submit(1, [1], bound), wire.Submit(2, [2], GREEDY))
    assert compiling.wait(10)
    assert peer.read() == wire.Accepted([2])
    load = wire.Load()
    while load.running or not load.decode_steps:
        load = peer.read().load
    assert load.waiting == 1

    def next_word() -> Any:
        """The next message that is not of a step (one tells what an idle engine has measured)."""
        while isinstance(message := peer.read(), wire.Stepped):
            assert not message.updates
        return message

    peer.send(wire.Abort([1]), wire.Ping())
    assert next_word() == wire.Pong()
    go.set()
    peer.send(wire.Submit(3, [3], GREEDY))
    assert next_word() == wire.Accepted([3])
    assert list(peer.until_ended(3)) == [3] and not peer.llm.engine.scheduler.has_work


def test_it_answers_between_steps_and_when_idle(peer: Peer) -> None:
    def pongs(until: int) -> int:
        found = 0
        while found < until:
            found += isinstance(peer.read(), wire.Pong)
        return found

    peer.send(wire.Ping())
    assert pongs(1)
    peer.send(wire.Submit(1, [1, 2, 3], SamplingParams(max_tokens=200, ignore_eos=True)))
    peer.send(wire.Ping(), wire.Ping())
    assert pongs(2) == 2
    assert peer.until_ended(1)
