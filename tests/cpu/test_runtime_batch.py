"""Batches from files: one answer a line, whatever the line is and whenever a run was killed."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kernelgen_runtime import LLM
from kernelgen_runtime.batch.drive import Drive, Told
from kernelgen_runtime.batch.journal import Journal
from kernelgen_runtime.batch.lines import CHAT, COMPLETIONS, MAX_LINE_BYTES, read_lines
from kernelgen_runtime.batch.resume import count_lines
from kernelgen_runtime.cli import main
from kernelgen_runtime.commands.batch import run_batch
from kernelgen_runtime.errors import LaunchError, RequestError
from runtime_fakes import VOCAB, environment, oracle
from runtime_stub import following, write_artifact, write_checkpoint
from test_runtime_llm import library, open_toy
from test_runtime_nan import DAMAGED, damaged_toy

EOS = frozenset((VOCAB - 1,))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifact(tmp_path_factory.mktemp("built") / "toy")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("weights") / "toy")


def request(name: str, body: dict[str, Any], url: str = COMPLETIONS) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def of_ids(name: str, prompt: list[int], tokens: int = 4, **fields: Any) -> dict[str, Any]:
    fixed = {"model": "any", "temperature": 0, "ignore_eos": True}
    return request(name, fixed | {"prompt": prompt, "max_tokens": tokens} | fields)


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts) + b"\n")
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def ids_of(answer: dict[str, Any]) -> list[int]:
    (choice,) = answer["response"]["body"]["choices"]
    ids: list[int] = choice["token_ids"]
    return ids


def words(ids: list[int]) -> str:
    return "".join(f" w{i}" for i in ids)


def test_chats_and_completions_with_text(built: Path, weights: Path, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "w5"}, {"role": "assistant", "content": "w6"}]
    parts = [{"type": "text", "text": "w7 "}, {"type": "text", "text": "w8"}]
    source = write(
        tmp_path / "in.jsonl",
        request("a", {"messages": [*chat, {"role": "user", "content": parts}]}
                | {"max_completion_tokens": 3}, CHAT),
        request("b", {"prompt": "w5 w6", "max_tokens": 5, "user": "x", "unheard_of": {}}),
        b"   ",
        request("c", {"prompt": ["w1", "w2 w3"], "max_tokens": 2, "return_token_ids": True}),
        request("d", {"prompt": "w5 w6", "stop": f" w{following([5, 6], 3)[2]}"}),
    )  # fmt: skip
    out = tmp_path / "out.jsonl"
    options = ["run", built, "--weights", weights, "--batch", source, "--output", out]
    assert main([*map(str, options), "--max-num-seqs", "3"]) == 0
    found = {answer["custom_id"]: answer for answer in answers(out)}
    assert all(a["error"] is None and a["response"]["status_code"] == 200 for a in found.values())
    assert [found[name]["id"] for name in "abcd"] == [f"batch_req_{i}" for i in (1, 2, 4, 5)]
    body = found["a"]["response"]["body"]
    assert body["object"] == "chat.completion" and body["model"] == "toy"
    wanted = following([1, 5, 1, 6, 1, 7, 8, 2], 3)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": words(wanted)}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens"] == 8 and body["usage"]["total_tokens"] == 11
    assert found["b"]["response"]["body"]["choices"][0]["text"] == words(following([5, 6], 5))
    two = found["c"]["response"]["body"]["choices"]
    assert [c["index"] for c in two] == [0, 1]
    assert [c["token_ids"] for c in two] == [following([1], 2), following([2, 3], 2)]
    stopped = found["d"]["response"]["body"]["choices"][0]
    assert stopped["text"] == words(following([5, 6], 2)) and stopped["finish_reason"] == "stop"


BAD_LINES: list[tuple[Any, str]] = [
    (b"{", "not JSON"),
    (b"[]", "must be a JSON object"),
    (b'{"custom_id": "x", "custom_id": "x"}', "appears twice"),
    (b"\xff\xfe", "not UTF-8"),
    (b'{"a":' * 5000, "nested too deeply"),
    ({}, "custom_id: must be a string"),
    ({"custom_id": "i" * 513}, "custom_id: must be a string of 1 to 512"),
    ({"custom_id": "m", "method": "GET"}, 'method: must be "POST"'),
    ({"custom_id": "u", "method": "POST", "url": "/v1/embeddings"}, "url: must be /v1/chat"),
    ({"custom_id": "v", "method": "POST", "url": CHAT, "body": []}, "body: must be an object"),
    (of_ids("good", [1]), "custom_id 'good' is that of an earlier line"),
]
BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "prompt: must be 1 to 2048 prompts, are 0"),
    ({"prompt": [[]]}, "prompt: is empty"),
    ({"prompt": [[1], []]}, "prompt: is empty"),
    ({"prompt": None}, "prompt: must be text or token ids, is None"),
    ({"prompt": {"a": 1}}, "prompt: must be text or token ids, is an object of 1"),
    ({"prompt": [VOCAB]}, "97 is not a token id from 0 to 96"),
    ({"prompt": [-1]}, "-1 is not a token id"),
    ({"prompt": [1.5]}, "1.5 is not a token id"),
    ({"prompt": [1] * 300}, "prompt of 300 tokens leaves no room in max_model_len 256"),
    ({"prompt": "text"}, "no tokenizer"),
    ({"prompt": [1], "temperature": -1}, "temperature: must be from 0 to"),
    ({"prompt": [1], "temperature": "hot"}, "temperature: must be from 0 to"),
    ({"prompt": [1], "top_p": 0}, "top_p: must be above 0 and at most 1"),
    ({"prompt": [1], "max_tokens": 0}, "max_tokens: must be"),
    ({"prompt": [1], "seed": 2**70}, "seed: must be a 64-bit integer"),
    ({"prompt": [1], "stop": 7}, "stop: must be"),
    ({"prompt": [1], "stop": "x"}, "need a tokenizer"),
    ({"prompt": [1], "priority": "high"}, "priority: must be from"),
    ({"prompt": [1], "cache_salt": ""}, "cache_salt must be 1 to 1024 characters"),
    ({"prompt": [1], "tools": [{}]}, "tools: cannot be asked"),
    ({"prompt": [1], "stream": True}, "stream: cannot be asked"),
    ({"prompt": [1], "suffix": "x"}, "suffix: cannot be asked"),
]


def test_each_bad_line_is_one_answer(tmp_path: Path) -> None:
    bodies = [request(f"b{i}", body) for i, (body, _) in enumerate(BAD_BODIES)]
    chats: list[tuple[Any, str]] = [
        (None, "messages: must be a list"),
        ([{"role": "wizard", "content": ""}], "messages[0].role: must be one of"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only parts of type text"),
        ([{"role": "user", "content": 3}], "messages[0].content: must be text"),
        ([{"role": "user", "content": "x"}], "no chat template"),
    ]
    source = write(
        tmp_path / "in.jsonl",
        of_ids("good", [1, 2]),
        *(line for line, _ in BAD_LINES),
        *bodies,
        *(request(f"c{i}", {"messages": of}, CHAT) for i, (of, _) in enumerate(chats)),
        of_ids("last", [3]),
    )
    out, llm = tmp_path / "out.jsonl", open_toy()
    assert run_batch(llm, source, out) == 0
    found = {int(a["id"].rpartition("_")[2]): a for a in answers(out)}
    assert ids_of(found.pop(1)) == oracle([1, 2], 6)
    assert ids_of(found.pop(len(found) + 1)) == oracle([3], 5), "the engine lives on"
    said = [a["error"] or a["response"]["body"]["error"] for _, a in sorted(found.items())]
    texts = [text for _, text in (*BAD_LINES, *BAD_BODIES, *chats)]
    assert len(said) == len(texts)
    for error, text in zip(said, texts, strict=True):
        assert text.replace("priority: must", "priority must") in error["message"], error
        assert len(error["message"]) < 600
    assert {a["response"]["status_code"] for a in found.values() if a["response"]} == {400}
    assert not llm.engine.scheduler.has_work


def test_choices_of_one_prompt_share_it(tmp_path: Path) -> None:
    body = {"prompt": [3] * 70, "max_tokens": 3, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    alone = [of_ids(f"s{i}", **body | {"seed": 5 + i}, tokens=3) for i in range(3)]
    lines = [request("n", body | {"n": 3}), *(request(a["custom_id"], a["body"]) for a in alone)]
    llm = open_toy(max_num_seqs=4)
    assert run_batch(llm, write(tmp_path / "in", *lines), tmp_path / "out") == 0
    found = {a["custom_id"]: a["response"]["body"] for a in answers(tmp_path / "out")}
    choices = [choice["token_ids"] for choice in found["n"]["choices"]]
    assert choices == [found[f"s{i}"]["choices"][0]["token_ids"] for i in range(3)]
    usage = found["n"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (70, 9), "the prompt counts once"
    assert llm.engine.scheduler.cache.prefix_counts.hit >= 2 * 64


def test_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.truncate(MAX_LINE_BYTES + 100)
        file.seek(0, 2)
        file.write(b"\n" + json.dumps(of_ids("a", [1])).encode())
    first, second = read_lines(path)
    assert "longer than" in first.problem and (second.number, second.custom_id) == (2, "a")


def test_nan_ends_its_own_request(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in", of_ids("a", [1, 2]), of_ids("b", [3, DAMAGED]), of_ids("c", [4])
    )
    assert run_batch(damaged_toy(max_num_seqs=2), source, tmp_path / "out") == 0
    found = {a["custom_id"]: a["response"] for a in answers(tmp_path / "out")}
    assert [found[name]["status_code"] for name in "abc"] == [200, 500, 200]
    assert "logits are NaN after 2 tokens" in found["b"]["body"]["error"]["message"]


def break_steps(llm: LLM, failing: set[int]) -> None:
    """Let steps of these numbers fail."""
    real, count = library(llm).step, iter(range(10**6))

    def step(plan_id: int, args: Any) -> None:
        if next(count) in failing:
            raise LaunchError("refused")
        real(plan_id, args)

    library(llm).step = step  # type: ignore[method-assign]


def test_a_failing_step_ends_its_requests_and_the_next_one_is_served(tmp_path: Path) -> None:
    source = write(tmp_path / "in", *(of_ids(f"r{i}", [i + 1]) for i in range(6)))
    llm = open_toy(max_num_seqs=2)
    break_steps(llm, {3})
    assert run_batch(llm, source, tmp_path / "out") == 0
    found = {a["custom_id"]: a["response"]["status_code"] for a in answers(tmp_path / "out")}
    assert sorted(found.values()) == [200, 200, 200, 200, 500, 500] and len(found) == 6


def test_a_dead_device_leaves_requests_to_the_next_run(tmp_path: Path) -> None:
    source = write(tmp_path / "in", *(of_ids(f"r{i}", [i + 1]) for i in range(8)))
    llm = open_toy(max_num_seqs=2)
    break_steps(llm, set(range(4, 10**4)))
    with pytest.raises(LaunchError, match="refused; 6 requests are left: run it again"):
        run_batch(llm, source, tmp_path / "out")
    assert not llm.engine.scheduler.has_work
    assert len(answers(tmp_path / "out")) == 2, "only what was answered"
    assert run_batch(open_toy(max_num_seqs=2), source, tmp_path / "out") == 0
    found = {a["custom_id"]: ids_of(a) for a in answers(tmp_path / "out")}
    assert found == {f"r{i}": oracle([i + 1], 5) for i in range(8)}


@pytest.mark.parametrize("cut", [0, 1, 40, 10**6])
def test_a_torn_line_is_written_anew(tmp_path: Path, cut: int) -> None:
    source = write(tmp_path / "in", *(of_ids(f"r{i}", [i + 1]) for i in range(5)))
    out = tmp_path / "out"
    assert run_batch(open_toy(max_num_seqs=2), source, out) == 0
    whole = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(whole[:2]) + whole[2][:-1][:cut])
    assert run_batch(open_toy(max_num_seqs=2), source, out) == 0
    assert out.read_bytes().splitlines(keepends=True)[:2] == whole[:2]
    found = {a["custom_id"]: ids_of(a) for a in answers(out)}
    assert len(answers(out)) == 5 and found == {f"r{i}": oracle([i + 1], 5) for i in range(5)}
    before = out.read_bytes()
    assert run_batch(open_toy(), source, out) == 0 and out.read_bytes() == before


def test_an_output_of_something_else_is_not_touched(tmp_path: Path) -> None:
    source = write(tmp_path / "in", *(of_ids(f"r{i}", [1]) for i in range(3)))
    out = tmp_path / "out"
    for content, word in (
        (b'{"id": 1}\n', "line 1 is no answer of a batch"),
        (b"poem\n", "line 1 is no answer of a batch"),
    ):
        out.write_bytes(content)
        with pytest.raises(RequestError, match=word):
            run_batch(open_toy(), source, out)
        assert out.read_bytes() == content
    out.unlink()
    run_batch(open_toy(), source, out)
    before = out.read_bytes()
    other = write(tmp_path / "other", *(of_ids(f"x{i}", [1]) for i in range(3)))
    with pytest.raises(RequestError, match="belongs to another batch"):
        run_batch(open_toy(), other, out)
    shorter = write(tmp_path / "shorter", of_ids("r0", [1]))
    with pytest.raises(RequestError, match="has no line 2"):
        run_batch(open_toy(), shorter, out)
    assert out.read_bytes() == before
    longer = write(tmp_path / "longer", *(of_ids(f"r{i}", [1]) for i in range(5)))
    assert run_batch(open_toy(), longer, out) == 0 and len(answers(out)) == 5


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    with (
        Journal(tmp_path / "out"),
        pytest.raises(RequestError, match="another run is writing it"),
    ):
        Journal(tmp_path / "out")
    Journal(tmp_path / "out").__exit__(None, None, None)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "in", *(of_ids(f"r{i}", [1]) for i in range(4)))
    real, calls = os.write, iter(range(100))

    def tail(file: int, data: bytes) -> int:
        n = next(calls)
        if n < 2:
            return real(file, data)
        if n == 2:
            return real(file, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kernelgen_runtime.batch.journal.os.write", tail)
    llm = open_toy(max_num_seqs=1)
    with pytest.raises(RequestError, match="No space left"):
        run_batch(llm, source, tmp_path / "out")
    assert len(answers(tmp_path / "out")) == 2 and not llm.engine.scheduler.has_work


def test_interrupted_at_every_answer(tmp_path: Path) -> None:
    """Whoever leaves in the middle leaves nothing behind in the engine."""
    source = write(tmp_path / "in", *(of_ids(f"r{i}", [i + 1], 3 + i) for i in range(6)))
    llm = open_toy(max_num_seqs=3)
    for point in range(7):
        told: list[Told] = []

        def tell(one: Told, told: list[Told] = told, point: int = point) -> None:
            if len(told) == point:
                raise KeyboardInterrupt
            told.append(one)

        if point < 6:
            with pytest.raises(KeyboardInterrupt):
                Drive(llm, tell).run(read_lines(source))
        else:
            Drive(llm, tell).run(read_lines(source))
        assert len(told) == point and not llm.engine.scheduler.has_work
        pool = llm.engine.scheduler.cache.pool
        assert pool.free_pages == pool.pages - 1


def test_a_killed_run_goes_on(built: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle, twice; each request has one answer, the same as without it."""
    count = 400
    lines = [of_ids(f"r{i}", [i % 90 + 1, i // 90 + 1], 60) for i in range(count)]
    source, out = write(tmp_path / "in", *lines), tmp_path / "out"
    command = [sys.executable, "-m", "kernelgen_runtime", "run", str(built), "--weights", "random"]
    command += ["--batch", str(source), "--output", str(out), "--max-num-seqs", "2"]
    kills = 0
    for wanted in (5, 40):
        child = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            if out.exists() and out.read_bytes().count(b"\n") >= wanted:
                child.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        kills += child.wait() == -signal.SIGKILL
    assert kills == 2, "or the test shows nothing"
    assert 40 <= len(out.read_bytes().splitlines()) < count
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{count} of {count} requests answered (" in done.stderr
    found = answers(out)
    assert len(found) == count and len({a["id"] for a in found}) == count
    by_name = {a["custom_id"]: ids_of(a) for a in found}
    assert all(by_name[f"r{i}"] == following(lines[i]["body"]["prompt"], 60) for i in range(count))


def test_a_terminal_gets_a_bar(built: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in", *(of_ids(f"r{i}", [i + 1], 5) for i in range(7)))
    command = [sys.executable, "-m", "kernelgen_runtime", "run", str(built), "--weights", "random"]
    command += ["--batch", str(source), "--output", str(tmp_path / "out")]
    ours, theirs = pty.openpty()
    env = environment() | {"TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen(command, env=env, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # what a terminal says when its last writer has gone
        while piece := os.read(ours, 1 << 16):
            shown += piece
    os.close(ours)
    assert child.wait() == 0
    assert b"7/7" in shown and b"tokens/s" in shown and b"7 of 7 requests answered" in shown


def test_counting_without_answers(tmp_path: Path) -> None:
    source = write(tmp_path / "in", of_ids("a", [1]), b"", b"junk", of_ids("b", [1]))
    assert count_lines(source, {}) == 3
    with pytest.raises(RequestError, match="cannot read it"):
        count_lines(tmp_path, {})


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--batch", "in"], "--batch: needs --output"),
        (["--prompt", "x", "--output", "o"], "--output: belongs to --batch"),
        (["--batch", "none", "--output", "o"], "there is no such file"),
        (["--batch", "in", "--output", "in"], "must not be the file of requests"),
        (["--batch", "in", "--output", "o", "--seed", "1"], "--seed: the requests of a batch"),
        (["--batch", "in", "--output", "o", "--top-k", "1"], "--top-k: the requests of a batch"),
        (["--batch", "in", "--output", "no/o"], "cannot write it"),
    ],
)
def test_mistakes_of_the_command_line(
    built: Path,
    tmp_path: Path,
    options: list[str],
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in", of_ids("a", [1]))
    before = (tmp_path / "in").read_bytes()
    assert main(["run", str(built), "--weights", "random", *options]) == 2
    said = capsys.readouterr().err
    assert word in said and said.count("\n") == 1
    assert (tmp_path / "in").read_bytes() == before
