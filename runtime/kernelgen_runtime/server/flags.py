"""Owns the options of `serve`: their names, which people know, and what each takes."""

import argparse
import json
import re
from decimal import Decimal
from typing import Any

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgG]?)")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
SWITCH = argparse.BooleanOptionalAction
SECRET = frozenset(("api_key", "watermark_config"))
"""options whose values are never shown"""


def size(text: str, beside: str = "") -> int:
    """Return a number such as 4096, 1k (1000) or 1K (1024); `beside` says what else may stand."""
    match = _SIZE.fullmatch(text)
    if match is None:
        wanted = f"must be a number such as 4096, 1k or 1K{beside}, is {text!r}"
        raise argparse.ArgumentTypeError(wanted)
    number = Decimal(match[1]) * _SCALE[match[2]]
    if number != int(number):
        raise argparse.ArgumentTypeError(f"must be a whole number, is {text!r}")
    return int(number)


def length(text: str) -> int | str:
    """Return a size, or "auto"."""
    return "auto" if text in ("auto", "-1") else size(text, ", or auto")


def interval(text: str) -> int | None:
    """Return a size, or None for "none"."""
    return None if text == "none" else size(text, ", or none")


def share(text: str) -> float:
    """Return a number above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, is {text!r}")
    return value


def json_object(text: str) -> dict[str, Any]:
    """Return the object that JSON text holds."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def words(text: str) -> list[str]:
    """Return a JSON list of texts, or the one text."""
    try:
        value = json.loads(text) if text.startswith("[") else [text]
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise argparse.ArgumentTypeError("must be a text or a JSON list of texts")
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of `serve` but the artifact."""
    _add_model(parser.add_argument_group("model"))
    _add_engine(parser.add_argument_group("engine"))
    _add_http(parser.add_argument_group("HTTP"))
    _add_answers(parser.add_argument_group("answers"))
    _add_operation(parser.add_argument_group("operation"))


def _add_model(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--weights", metavar="DIR", help="checkpoint folder, or random[:SEED]")
    add("--served-model-name", nargs="+", metavar="NAME", help="names that requests may use")
    add("--device", default="auto", metavar="WHERE", help="auto, cpu or cuda[:i]")
    add("--threads", type=int, metavar="N", help="worker threads of the CPU")
    add("--max-model-len", type=length, metavar="N", help="longest sequence, or auto")
    add("--generation-config", default="auto", metavar="WHERE",
        help="auto: the checkpoint's defaults; vllm: neutral ones; or a folder")  # fmt: skip
    add("--override-generation-config", type=json_object, default={}, metavar="JSON",
        help="defaults that win over those")  # fmt: skip
    add("--watermark-config", type=json_object, metavar="JSON",
        help='{"key": …}; the key also from KERNELGEN_WATERMARK_KEY')  # fmt: skip


def _add_engine(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--max-num-seqs", type=size, metavar="N", help="requests at once")
    add("--max-num-batched-tokens", type=size, metavar="N", help="most tokens of one step")
    add("--kv-cache-memory-bytes", type=size, metavar="N", help="memory of the cache")
    add("--gpu-memory-utilization", type=share, default=0.92, metavar="SHARE",
        help="of a GPU's memory, what may be used; default 0.92")  # fmt: skip
    add("--enforce-eager", "--eager", action=SWITCH, default=False, help="no CUDA graphs")
    add("--enable-prefix-caching", action=SWITCH, default=True,
        help="prompts that begin alike share what was computed")  # fmt: skip
    add("--prefix-cache-retention-interval", type=interval, default=0, metavar="N",
        help="what windows keep of a prompt: none (all), 0 (its end), or every N")  # fmt: skip
    add("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs",
        help="who came first, or whose priority number is lowest")  # fmt: skip
    add("--long-prefill-token-threshold", type=size, metavar="N",
        help="most tokens of one request in one step")  # fmt: skip
    add("--async-scheduling", action=SWITCH, help="launch a step before the last one has ended")
    add("--stream-interval", type=size, default=1, metavar="N", help="tokens of one chunk")


def _add_http(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address; default 127.0.0.1, this machine alone")
    add("--port", type=int, default=8000, help="port; 0 takes a free one")
    add("--uds", metavar="PATH", help="a Unix socket instead of host and port")
    add("--api-key", nargs="+", metavar="KEY",
        help="what /v1 asks for; better from KERNELGEN_API_KEY: no `ps` shows it")  # fmt: skip
    add("--root-path", default="", metavar="PATH", help="path before all routes, at a proxy")
    add("--allowed-origins", type=words, default=[], metavar="JSON", help="origins of browsers")
    add("--allowed-methods", type=words, default=["GET", "POST"], metavar="JSON")
    add("--allowed-headers", type=words, default=["*"], metavar="JSON")
    add("--allow-credentials", action=SWITCH, default=False)
    for name in ("keyfile", "certfile", "ca-certs"):
        add(f"--ssl-{name}", metavar="FILE")
    add("--ssl-cert-reqs", type=int, choices=(0, 1, 2), default=0)
    add("--max-body-bytes", type=size, default=16 << 20, metavar="N", help="default 16M")
    add("--max-header-bytes", type=size, default=64 << 10, metavar="N", help="default 64K")
    add("--disable-fastapi-docs", action=SWITCH, default=False, help="no /openapi.json")
    add("--enable-request-id-headers", action=SWITCH, default=False,
        help="X-Request-Id on answers")  # fmt: skip
    add("--enable-scale-out", action=SWITCH, default=False,
        help="/render, /derender and /inference/v1/generate")  # fmt: skip


def _add_answers(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--max-logprobs", type=int, default=20, metavar="N", help="most that may be asked")
    add("--chat-template", metavar="FILE", help="instead of the checkpoint's; a file or its text")
    add("--chat-template-content-format", choices=("auto", "string", "openai"), default="auto")
    add("--default-chat-template-kwargs", type=json_object, default={}, metavar="JSON")
    add("--trust-request-chat-template", action=SWITCH, default=False)
    add("--enable-auto-tool-choice", action=SWITCH, default=True,
        help="read tool calls; off: they stay text")  # fmt: skip
    add("--tool-call-parser", default="auto", metavar="NAME", help="auto, none or a format")
    add("--reasoning-parser", default="auto", metavar="NAME", help="auto, none or a format")
    add("--response-role", default="assistant", metavar="ROLE")
    add("--return-tokens-as-token-ids", action=SWITCH, default=False)
    add("--enable-prompt-tokens-details", action=SWITCH, default=False)
    add("--enable-force-include-usage", action=SWITCH, default=False)


def _add_operation(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--config", metavar="FILE", help="options as YAML; those given here win")
    add("--max-num-queued-reqs", type=size, metavar="N", help="unfinished requests; more get 503")
    add("--max-num-queued-tokens", type=size, metavar="N", help="prompt tokens not yet computed")
    add("--shutdown-timeout", type=float, default=0.0, metavar="S",
        help="after a signal, seconds for what is under way; default 0")  # fmt: skip
    add("--watchdog-timeout", type=float, default=300.0, metavar="S",
        help="give the engine up after so long without a step; default 300, 0 never")  # fmt: skip
    add("--metrics-prefix", default="kernelgen", metavar="WORD", help="vllm for its dashboards")
    add("--enable-server-load-tracking", action=SWITCH, default=True, help="count for /load")
    add("--disable-log-stats", action=SWITCH, default=False)
    add("--enable-log-requests", action=SWITCH, default=False)
    add("--max-log-len", type=size, default=0, metavar="N", help="characters of a prompt to log")
    add("--uvicorn-log-level", default="info",
        choices=("debug", "info", "warning", "error", "critical", "trace"))  # fmt: skip
    add("--disable-uvicorn-access-log", action=SWITCH, default=False)
    add("--debug", action="store_true", help="show tracebacks")
