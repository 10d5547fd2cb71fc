"""The command line of `serve`: spellings, files, sizes, refusals, and what is never shown."""

from __future__ import annotations

import argparse
import stat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")
pytest.importorskip("yaml")

from kernelgen_runtime.cli import build_parser, main
from kernelgen_runtime.errors import KernelgenRuntimeError
from kernelgen_runtime.server.arguments import ArgumentsError
from kernelgen_runtime.server.bind import bind
from kernelgen_runtime.server.command import add_serve, known_options, serve_argv
from kernelgen_runtime.server.flags import size
from kernelgen_runtime.server.known_flags import UNSUPPORTED
from kernelgen_runtime.server.options import ServeOptions, serve_options

# Every option that people know from other servers: each has an effect here or a clear refusal.
PEOPLE_KNOW = """served-model-name host port uds api-key tokenizer hf-overrides trust-remote-code
revision download-dir dtype max-model-len seed load-format model-loader-extra-config quantization
quantization-config kv-cache-dtype block-size gpu-memory-utilization kv-cache-memory-bytes
num-gpu-blocks-override max-num-seqs max-num-batched-tokens enable-chunked-prefill
enable-prefix-caching prefix-caching-hash-algo prefix-cache-retention-interval
long-prefill-token-threshold scheduling-policy async-scheduling stream-interval enforce-eager
cudagraph-capture-sizes max-cudagraph-capture-size compilation-config attention-backend
speculative-config watermark-config per-request-spec-decode-metrics enable-per-request-metrics
return-sampling-mask tensor-parallel-size pipeline-parallel-size data-parallel-size
enable-expert-parallel distributed-executor-backend kv-transfer-config enable-sleep-mode
max-num-queued-reqs max-num-queued-tokens max-logprobs logprobs-mode generation-config
override-generation-config chat-template chat-template-content-format enable-auto-tool-choice
tool-call-parser reasoning-parser response-role return-tokens-as-token-ids
enable-prompt-tokens-details enable-force-include-usage enable-server-load-tracking
enable-request-id-headers disable-log-stats enable-log-requests max-log-len uvicorn-log-level
disable-fastapi-docs root-path middleware allowed-origins allowed-methods allowed-headers
allow-credentials ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs shutdown-timeout
enable-scale-out grpc api-server-count config"""


def read(*words: object, **env: str) -> argparse.Namespace:
    argv = serve_argv(list(map(str, words)), None)
    return build_parser().parse_args(["serve", *argv])


def options(*words: object) -> ServeOptions:
    parser = argparse.ArgumentParser()
    add_serve(parser, "toy")
    return serve_options(read("toy", "--weights", "W", *words), parser.parse_args([]))


def test_every_name_that_people_know_is_answered() -> None:
    known = {*known_options(None), *UNSUPPORTED}
    assert set(PEOPLE_KNOW.split()) <= known
    assert not set(known_options(None)) & UNSUPPORTED.keys()


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("--max-model-len", "1k"), "max_model_len", 1000),
        (("--max_model_len=1K",), "max_model_len", 1024),
        (("--max-model-len", "auto"), "max_model_len", "auto"),
        (("--max-num-batched-tokens", "2M"), "max_num_batched_tokens", 2 << 20),
        (("--no-enable-prefix-caching",), "enable_prefix_caching", False),
        (("--no_enable_prefix_caching",), "enable_prefix_caching", False),
        (("--served-model-name", "a", "b"), "served_model_name", ["a", "b"]),
        (("--allowed-origins", '["x", "y"]'), "allowed_origins", ["x", "y"]),
        (
            ("--override-generation-config", '{"temperature": 0.5}'),
            "override_generation_config",
            {"temperature": 0.5},
        ),
        (
            ("--override_generation_config.temperature", "0.5"),
            "override_generation_config",
            {"temperature": 0.5},
        ),
        (
            ("--watermark-config.key=7", "--watermark-config.deduplicate_contexts", "all"),
            "watermark_config",
            {"key": 7, "deduplicate_contexts": "all"},
        ),
        (("--tensor-parallel-size", "1"), "port", 8000),
        (("--dtype=auto", "--enable-chunked-prefill"), "port", 8000),
    ],
)
def test_spellings(words: tuple[str, ...], name: str, value: Any) -> None:
    assert getattr(read("toy", *words), name) == value


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--max-model-length", "5"), "did you mean --max-model-len?"),
        (("--no-such-thing-at-all",), "there is no such option"),
        (("--tensor-parallel-size", "2"), "not supported by this build: this build runs on one"),
        (("--quantization", "fp8"), "not supported by this build"),
        (("--speculative-config.method", "x"), "not supported by this build"),
        (("--no-enable-chunked-prefill",), "not supported by this build"),
        (("--watermark-config.key",), "needs a value"),
        (("--config", "/nowhere.yaml"), "cannot read it"),
    ],
)
def test_what_cannot_be_meant_is_told(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ArgumentsError, match=says.replace("?", r"\?")):
        read("toy", *words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--port", 70000), "--port"),
        (("--max-logprobs", 21), "--max-logprobs"),
        (("--metrics-prefix", "a b"), "--metrics-prefix"),
        (("--max-num-queued-reqs", 0), "--max-num-queued-reqs"),
        (("--ssl-keyfile", "x"), "--ssl-certfile"),
        (("--uds", "x", "--port", 9), "--uds"),
        (("--allowed-origins", "*", "--allow-credentials"), "--allow-credentials"),
        (("--watermark-config", '{"kee": 1}'), "kee"),
        (("--watermark-config", "{}"), "has no key"),
        (("--shutdown-timeout", "-1"), "--shutdown-timeout"),
        (("--watchdog-timeout", "-1"), "--watchdog-timeout"),
        (("--watchdog-timeout", "nan"), "--watchdog-timeout"),
        (("--watchdog-timeout", "1e6"), "--watchdog-timeout"),
    ],
)
def test_pairs_and_ranges(words: tuple[object, ...], says: str) -> None:
    with pytest.raises(KernelgenRuntimeError, match=says):
        options(*words)


def test_a_file_of_options_loses_against_the_line(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: toy\nweights: W\nport: 9000\nmax_num_seqs: 4\nserved-model-name: [a, b]\n"
        "enable-prefix-caching: false\noverride-generation-config: {top_p: 0.5}\n"
        "enable-scale-out: true\ntensor-parallel-size: 1\n"
    )
    found = read("--config", path, "--port", 9001)
    assert (found.artifact, found.weights, found.port, found.max_num_seqs) == ("toy", "W", 9001, 4)
    assert found.served_model_name == ["a", "b"] and not found.enable_prefix_caching
    assert found.override_generation_config == {"top_p": 0.5} and found.enable_scale_out
    assert read("other", "--config", path).artifact == "other"
    path.write_text("- 1\n")
    with pytest.raises(ArgumentsError, match="must map names"):
        read("toy", "--config", path)
    for text in ("config: other.yaml\n", "port: 1\nport: 2\n"):
        path.write_text(text)
        with pytest.raises(ArgumentsError, match=r"cannot name another|twice"):
            read("toy", "--config", path)
    path.write_text("a: &a [*a]\n]")
    with pytest.raises(ArgumentsError, match="not YAML"):
        read("toy", "--config", path)


@pytest.mark.row("R-178")
def test_secrets_are_in_no_repr_and_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    secret, number = "sk-secret", 918273645
    words = ("--api-key", secret, "--watermark-config", f'{{"key": {number}}}', "--port", 1)
    found = options(*words)
    assert found.api_keys == (secret.encode(),) and found.engine.watermark is not None
    shown = repr(found) + str(found) + repr(found.engine) + " ".join(found.given)
    assert secret not in shown and str(number) not in shown
    assert "api-key=***" in found.given and "port=1" in found.given
    monkeypatch.setenv("KERNELGEN_API_KEY", "from-there")
    monkeypatch.setenv("KERNELGEN_WATERMARK_KEY", "12")
    found = options()
    assert found.api_keys == (b"from-there",)
    assert found.engine.watermark is not None and found.engine.watermark.key == 12


def test_a_socket_left_behind_is_taken_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    bind("127.0.0.1", 0, path).close()
    live = bind("127.0.0.1", 0, path)
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    with pytest.raises(ArgumentsError, match="cannot be used"):
        bind("127.0.0.1", 0, path)
    live.close()


def test_paths_that_hold_nothing_are_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path / "none"), "--weights", str(tmp_path)]) == 2
    assert main(["serve", str(tmp_path), "--weights", str(tmp_path / "none")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in told] == [
        "no such file or folder",
        "no such folder",
    ]


def test_it_listens_to_this_machine_alone() -> None:
    assert options().flags.host == "127.0.0.1"


@pytest.mark.parametrize(("text", "is_"), [("1.5k", 1500), ("2K", 2048), ("1.1k", 1100)])
def test_sizes_are_exact(text: str, is_: int) -> None:
    assert size(text) == is_


@pytest.mark.parametrize("text", ["1.5", "0.1K", "-3", "1e3", "inf"])
def test_a_size_is_a_whole_number(text: str) -> None:
    """1.5 would otherwise be a context of one token."""
    with pytest.raises(argparse.ArgumentTypeError, match="number"):
        size(text)
