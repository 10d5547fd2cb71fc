"""The server over HTTP, asked by the official client: routes, streams, fields, refusals."""

from __future__ import annotations

import html
import json
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_fakes import HYBRID
from runtime_stub import following, write_artifact, write_checkpoint
from server_toys import ServerProcess, chat_answer, events, ids_of, words

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

KEY = "sk-a-key-that-nobody-shall-see"
LIMIT = 8
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the file: steps of 1 ms, eight requests at once."""
    folder = tmp_path_factory.mktemp("server")
    artifact = write_artifact(folder / "toy", step_us=1000)
    options = ("--served-model-name", "toy", "other", "--max-num-queued-reqs", LIMIT)
    options += (
        "--enable-prompt-tokens-details",
        "--enable-request-id-headers",
        "--enable-scale-out",
    )
    options += ("--metrics-prefix", "vllm", "--max-body-bytes", "64k", "--enable-log-requests")
    made = ServerProcess(
        artifact, write_checkpoint(folder / "weights"), folder, *options, KERNELGEN_API_KEY=KEY
    )
    try:
        made.wait_ready()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def post(server: ServerProcess, body: Any, path: str = "/v1/completions") -> tuple[int, Any]:
    return server.post(path, body, **HEADERS)


def error(server: ServerProcess, body: Any, path: str = "/v1/completions") -> dict[str, Any]:
    status, answer = post(server, body, path)
    assert status == answer["error"]["code"] and len(json.dumps(answer)) <= 8192
    found: dict[str, Any] = answer["error"]
    return found


@pytest.mark.row("B-09")
def test_completions_of_text_ids_and_lists(client: Any) -> None:
    ask = client.completions.create
    for prompt, starts in (
        ("w5 w6", [[5, 6]]),
        ([5, 6], [[5, 6]]),
        (["w5", "w7 w8"], [[5], [7, 8]]),
        ([[5], [7, 8], [9]], [[5], [7, 8], [9]]),
    ):
        answer = ask(model="toy", prompt=prompt, max_tokens=5, temperature=0)
        assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
        assert [ids_of(c.text) for c in answer.choices] == [following(s, 5) for s in starts]
        assert [c.index for c in answer.choices] == list(range(len(starts)))
        assert {c.finish_reason for c in answer.choices} == {"length"}
        prompt_tokens = sum(map(len, starts))
        usage = answer.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (prompt_tokens, 5 * len(starts))
        assert usage.total_tokens == prompt_tokens + 5 * len(starts)


@pytest.mark.row("B-09")
def test_a_stream_of_a_completion_is_the_whole_answer(client: Any) -> None:
    options = {"model": "toy", "prompt": "w5", "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**options)
    chunks = list(client.completions.create(**options, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert {(c.id, c.created) for c in chunks} == {(chunks[0].id, chunks[0].created)}
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len(chunks) > 10


@pytest.mark.row("B-09")
def test_the_chunks_of_a_chat_come_in_order(server: ServerProcess) -> None:
    body = {
        "messages": [{"role": "user", "content": "w9"}],
        "max_completion_tokens": 6,
        "temperature": 0,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with server.asked("POST", "/v1/chat/completions", body, **HEADERS) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = list(events(answer))
    assert found.pop() == "[DONE]"
    last = found.pop()
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 12
    assert last["usage"]["prompt_tokens"] == 3
    assert {chunk["object"] for chunk in found} == {"chat.completion.chunk"}
    assert all(chunk["usage"] is None for chunk in found)
    for index in range(2):
        own = [c["choices"][0] for c in found if c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + ["length"]
        text = "".join(c["delta"].get("content", "") for c in own)
        assert text == chat_answer("w9", 6)


@pytest.mark.row("B-09")
def test_a_chat_of_the_official_client(client: Any) -> None:
    parts = [{"type": "text", "text": "w3 "}, {"type": "text", "text": "w4"}]
    messages = [{"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="other", messages=messages, max_tokens=7)
    assert answer.choices[0].message.content == chat_answer("w3 w4", 7)
    assert answer.model == "other" and answer.id.startswith("chatcmpl-")
    again = client.chat.completions.create(model="other", messages=messages, max_tokens=7)
    assert again.usage.prompt_tokens_details.cached_tokens >= 0


def test_usage_on_every_chunk(server: ServerProcess) -> None:
    wish = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "w1", "max_tokens": 4, "stream": True, "stream_options": wish}
    with server.asked("POST", "/v1/completions", body, **HEADERS) as answer:
        found = [chunk for chunk in events(answer) if chunk != "[DONE]"]
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts) and counts[-1] == 4


def test_a_stop_string_ends_the_text(client: Any) -> None:
    ids = following([5], 20)
    stop = words(ids[7:8]) + " "
    for stream in (False, True):
        answer = client.completions.create(
            model="toy", prompt=[5], max_tokens=20, stop=[stop], stream=stream
        )
        choices = [c.choices[0] for c in answer] if stream else answer.choices
        text = "".join(choice.text for choice in choices)
        first = words(ids).index(stop)
        assert text == words(ids)[:first]
        assert choices[-1].finish_reason == "stop" and choices[-1].stop_reason == stop


def test_fields_of_other_servers(server: ServerProcess) -> None:
    ids = following([5], 10)
    body = {"prompt": [5], "max_tokens": 10, "return_token_ids": True, "min_tokens": 0}
    status, answer = post(server, body | {"stop_token_ids": [ids[3]], "top_k": -1})
    (choice,) = answer["choices"]
    assert status == 200 and choice["token_ids"] == ids[:4] and choice["stop_reason"] == ids[3]
    assert choice["prompt_token_ids"] == [5]
    _, answer = post(server, body | {"echo": True, "max_tokens": 2})
    assert answer["choices"][0]["text"] == "w5" + words(ids[:2])
    _, answer = post(server, body | {"echo": True, "max_tokens": 0})
    assert ids_of(answer["choices"][0]["text"]) == [5]
    assert answer["usage"]["completion_tokens"] == 0
    _, answer = post(server, {"prompt": [1, 2, 3, 4], "truncate_prompt_tokens": 2, "max_tokens": 3})
    assert ids_of(answer["choices"][0]["text"]) == following([3, 4], 3)


def test_unknown_fields_are_ignored_and_told_once(server: ServerProcess) -> None:
    for _ in range(3):
        assert post(server, {"prompt": "w1", "max_tokens": 1, "brand_new": {"a": 1}})[0] == 200
    assert server.log.count("field 'brand_new' is not known") == 1


@pytest.mark.row("B-09")
def test_models_tokens_version_load(server: ServerProcess, client: Any) -> None:
    assert [card.id for card in client.models.list()] == ["toy", "other"]
    assert client.models.retrieve("other").max_model_len == 256
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("third")
    status, told = post(server, {"prompt": "w4 w5", "return_token_strs": True}, "/tokenize")
    assert (status, told["tokens"], told["count"]) == (200, [4, 5], 2)
    assert told["token_strs"] == ["w4", "w5"] and told["max_model_len"] == 256
    _, told = post(server, {"messages": [{"role": "user", "content": "w7"}]}, "/tokenize")
    assert told["tokens"] == [1, 7, 2]
    assert post(server, {"tokens": [4, 5]}, "/detokenize")[1] == {"prompt": "w4 w5"}
    assert json.loads(server.get("/version")[1])["version"] == "1.0"
    assert json.loads(server.get("/load")[1]) == {"server_load": 0}
    assert server.get("/ping")[0] == server.get("/health")[0] == 200


@pytest.mark.row("R-165")
def test_scale_out_routes(server: ServerProcess) -> None:
    _, told = post(server, {"messages": [{"role": "user", "content": "w7"}]}, "/render")
    assert told["token_ids"] == [[1, 7, 2]]
    sampling = {"max_tokens": 4, "temperature": 0}
    body = {"token_ids": [1, 7, 2], "sampling_params": sampling}
    _, told = post(server, body, "/inference/v1/generate")
    ids = told["choices"][0]["token_ids"]
    assert ids == following([1, 7, 2], 4)
    assert post(server, {"token_ids": ids}, "/derender")[1] == {"text": words(ids).strip()}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "prompt: is missing"),
        ({"prompt": 5}, "prompt: must be text"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [99]}, "not a token id from 0 to 96"),
        ({"prompt": list(range(90)) * 3}, r"270 tokens .* max_model_len 256"),
        ({"prompt": "w1", "temperature": -1}, "temperature: must be a number from 0"),
        ({"prompt": "w1", "n": 129}, "n: must be a whole number from 1 to 128"),
        ({"prompt": "w1", "logprobs": 21}, "logprobs"),
        ({"prompt": "w1", "logprobs": 2}, "built without"),
        ({"prompt": "w1", "best_of": 3}, "best_of: must be n"),
        ({"prompt": "w1", "suffix": "x"}, "suffix: cannot be asked"),
        ({"prompt": "w1", "stop": [""]}, "stop"),
        ({"prompt": "w1", "cache_salt": ""}, "cache_salt"),
        ({"prompt": ["w1"] * 100, "n": 100}, "prompts times n must be at most 4096, are 10000"),
        ({"prompt": "w1", "request_id": "a\nb"}, "request_id: up to 128 printable"),
        ({"prompt": "w1", "stream": 1}, "stream: must be true or false"),
        ({"prompt": "w1", "min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"prompt": "w1", "logit_bias": {"x": 1}}, "logit_bias: keys must be token ids"),
        (b"{", "not JSON"),
        (b"[" * 50_000, "not JSON"),
        (b'{"prompt": "\xff"}', "not JSON"),
        (b"[]", "must be an object"),
    ],
)
def test_what_is_wrong_is_told(server: ServerProcess, body: Any, says: str) -> None:
    found = error(server, body)
    assert found["code"] == 400 and found["type"] == "BadRequestError"
    assert re.search(says, found["message"]), found


def test_other_refusals(server: ServerProcess, client: Any) -> None:
    found = error(server, {"prompt": "w1", "model": "gone"})
    assert (found["code"], found["type"]) == (404, "NotFoundError") and "toy" in found["message"]
    assert server.post("/v1/completions", {"prompt": "w1"})[0] == 401
    wrong = {"authorization": f"Bearer {KEY[:-1]}"}
    assert server.post("/v1/completions", {"prompt": "w1"}, **wrong)[0] == 401
    assert server.post("/v1/completions", b"{}", content_type="text/plain", **HEADERS)[0] == 415
    assert server.get("/v1/completions", **HEADERS)[0] == 405
    assert server.get("/nowhere")[0] == 404
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0).models.list()


def test_large_bodies_and_heads_are_refused_early(server: ServerProcess) -> None:
    begin = time.monotonic()
    status, told = post(server, b'{"prompt": "' + b"a" * (10 << 20) + b'"}')
    assert status == 413 and told["error"]["type"] == "RequestTooLargeError"
    with server.asked("GET", "/health", None, x_long="a" * 70_000) as answer:
        assert answer.status == 431
    assert time.monotonic() - begin < 5 and server.get("/health")[0] == 200


@pytest.mark.row("R-174")
def test_the_answer_to_an_attack_is_small(server: ServerProcess) -> None:
    parts = ",".join(["1"] * 2000)
    body = f'{{"messages": [{{"role": "user", "content": [{parts}]}}]}}'.encode()
    assert len(body) < 4600
    begin = time.monotonic()
    found = error(server, body, "/v1/chat/completions")
    assert time.monotonic() - begin < 1.0
    assert found["code"] == 400
    many = {"messages": [{"role": i} for i in range(500)]}
    found = error(server, many, "/v1/chat/completions")
    assert "500 in all" in found["message"] and found["message"].count("must be") <= 10


@pytest.mark.row("R-163")
def test_exactly_the_allowed_number_is_let_in(server: ServerProcess) -> None:
    body = {"prompt": "w1", "max_tokens": 200, "stream": True}
    statuses: list[int] = []
    gate = threading.Barrier(40)

    def ask() -> None:
        gate.wait()
        with server.asked("POST", "/v1/completions", body, **HEADERS) as answer:
            statuses.append(answer.status)
            if answer.status == 503:
                assert answer.headers["retry-after"] == "1"
            answer.read()

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] * LIMIT + [503] * (40 - LIMIT)
    assert server.metric("admission_rejections_total", reason="num_queued_reqs") == 40 - LIMIT
    found = error(server, {"prompt": ["w1"] * 3, "n": 3})
    assert found["code"] == 503 and found["type"] == "Service Unavailable"
    assert found["message"].endswith("; ask for fewer choices"), "trying again would not help"
    assert post(server, {"prompt": "w1", "n": LIMIT, "max_tokens": 1})[0] == 200
    assert server.metric("num_requests_unfinished") == 0


@pytest.mark.row("B-10")
def test_readers_that_go_at_any_point_leave_nothing(server: ServerProcess) -> None:
    chance = random.Random(7)
    body = {"prompt": ["w3", "w4"], "max_tokens": 60, "stream": True}

    def vanish(bytes_read: int) -> None:
        with server.asked("POST", "/v1/completions", body, **HEADERS) as answer:
            answer.read(bytes_read)

    threads = [
        threading.Thread(target=vanish, args=(chance.randrange(1, 30_000),)) for _ in range(24)
    ]
    for thread in threads:
        thread.start()
        time.sleep(chance.random() / 50)
    for thread in threads:
        thread.join()
    end = time.monotonic() + 10
    while server.metric("num_requests_unfinished") or json.loads(server.get("/load")[1]) != {
        "server_load": 0
    }:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert post(server, {"prompt": "w1", "max_tokens": 3})[0] == 200
    assert server.metric("num_requests_running") == 0 == server.metric("kv_cache_usage_perc")


@pytest.mark.row("B-10")
def test_a_reader_that_goes_away_ends_its_request(server: ServerProcess) -> None:
    before = server.metric("request_success_total", finished_reason="abort")
    body = {"prompt": "w3", "max_tokens": 240, "n": 4}
    with server.asked("POST", "/v1/completions", body | {"stream": True}, **HEADERS) as answer:
        answer.readline()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        while not server.metric("num_requests_running"):
            pass
    end = time.monotonic() + 10
    while server.metric("request_success_total", finished_reason="abort") < before + 8:
        assert time.monotonic() < end
        time.sleep(0.02)
    post(server, {"prompt": "w1", "max_tokens": 3})  # a later step tells what is in use
    assert server.metric("num_requests_running") == 0 == server.metric("kv_cache_usage_perc")


def test_metrics_have_the_names_that_dashboards_know(server: ServerProcess) -> None:
    text = server.get("/metrics")[1].decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    wanted = """num_requests_running num_requests_waiting num_requests_waiting_by_reason
        kv_cache_usage_perc cache_config_info prefix_cache_queries_total prefix_cache_hits_total
        num_preemptions_total prompt_tokens_total prompt_tokens_by_source_total
        prompt_tokens_cached_total generation_tokens_total request_success_total
        admission_rejections_total watermark_requests_total corrupted_requests_total
        time_to_first_token_seconds inter_token_latency_seconds
        request_time_per_output_token_seconds e2e_request_latency_seconds
        request_queue_time_seconds request_inference_time_seconds request_prefill_time_seconds
        request_decode_time_seconds request_prompt_tokens request_generation_tokens
        request_params_n request_params_max_tokens request_max_num_generation_tokens
        iteration_tokens_total request_prefill_kv_computed_tokens"""
    wanted += " prefix_cache_group_hits_total"
    assert {f"vllm:{name}" for name in wanted.split()} <= names
    assert server.metric("generation_tokens_total") > 0
    assert server.metric("time_to_first_token_seconds_count") > 0


def test_prefix_hits_are_told_of_each_group(server: ServerProcess) -> None:
    """A group that finds less than the others spoils their hits: it can be seen which."""

    def hits() -> list[float]:
        groups = ({"group": name} for name, _ in HYBRID)
        common = server.metric("prefix_cache_hits_total")
        return [common, *(server.metric("prefix_cache_group_hits_total", **g) for g in groups)]

    body = {"prompt": " ".join(f"w{k}" for k in range(40, 90)), "max_tokens": 1}
    post(server, body)
    before = hits()
    post(server, body)
    common, *alone = (b - a for a, b in zip(before, hits(), strict=True))
    assert len(alone) == 2 and common == min(alone) == 48


def test_request_ids_go_through(server: ServerProcess) -> None:
    body = {"prompt": "w1", "max_tokens": 1}
    with server.asked("POST", "/v1/completions", body, x_request_id="mine-7", **HEADERS) as answer:
        assert answer.headers["x-request-id"] == "mine-7"
        assert json.loads(answer.read())["id"] == "cmpl-mine-7"


def test_the_description_names_every_route(server: ServerProcess) -> None:
    told = json.loads(server.get("/openapi.json")[1])
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/render"} <= set(told["paths"])
    for path, methods in told["paths"].items():
        for method in ("get", "post", "put", "patch", "delete"):
            with server.asked(method.upper(), path, b"", **HEADERS) as answer:
                assert (answer.status != 405) == (method in methods), f"{method} {path}"
                answer.read()


@pytest.mark.row("R-178")
def test_no_secret_is_said(server: ServerProcess) -> None:
    assert KEY not in server.log and "sk-a-key" not in server.log
    assert KEY not in server.get("/")[1].decode() + server.get("/metrics")[1].decode()


def test_the_page_can_be_read_on_a_phone(server: ServerProcess, tmp_path: Path) -> None:
    """A browser shows it, and nothing of it is wider than the window."""
    text = server.get("/")[1].decode()
    assert "<script" not in text and 'id="state">ready<' in text and "memory limit" in text
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium here")

    def shown(address: str) -> str:
        argv = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", address]
        argv[1:1] = [f"--user-data-dir={tmp_path}", "--virtual-time-budget=1000"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout

    assert 'id="running"' in shown(f"{server.url}/")
    # A window cannot be as narrow as a phone is; a frame can.
    phone = tmp_path / "phone.html"
    phone.write_text(
        f'<!doctype html><iframe width="390" height="844" srcdoc="{html.escape(text)}"></iframe>'
        "<script>onload = () => { const page = frames[0].document.documentElement;"
        "document.body.dataset.width = page.clientWidth + ' ' + page.scrollWidth; }</script>"
    )
    found = re.search(r'data-width="(\d+) (\d+)"', shown(phone.as_uri()))
    assert found is not None and 360 <= int(found[1]) <= 390 and int(found[2]) <= int(found[1])
