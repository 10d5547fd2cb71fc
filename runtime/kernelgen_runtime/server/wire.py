"""Owns the messages between API and engine process: MessagePack, typed, one version number."""

from typing import Any, Literal

import msgspec

from ..sample.params import SamplingParams
from ..sample.reference import Likelihood
from ..sample.watermark import Watermark

VERSION = 2
"""raised by one with every change that an old reader would misunderstand"""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is made with: the arguments of `LLM` that a server can set."""

    artifact: str
    weights: str
    device: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | Literal["auto"] | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.92
    threads: int | None = None
    chunk_tokens: int | None = None
    graphs: bool = True
    scheduling_policy: str = "fcfs"
    async_scheduling: bool | None = None
    enable_prefix_caching: bool = True
    prefix_cache_retention_interval: int | None = 0
    watermark: Watermark | None = None


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """API → engine, first: load the model."""

    version: int
    options: EngineOptions


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """API → engine: generate one choice. `key` is new; every message about it carries it.

    `params.stop` is empty: stop strings are found where text is made, and end with an `Abort`.
    """

    key: int
    prompt_ids: list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """API → engine: nobody waits for these any more. Nothing is answered."""

    keys: list[int]


class Reset(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    """API → engine: forget all known prefixes."""


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """API → engine: say that you are there. Answered by a `Pong` once the step under way ends."""


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """API → engine: end the process now. The end of the connection says the same."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine knows once it is ready; lengths in tokens, sizes in bytes."""

    name: str
    version: str
    architecture: str
    dtype: str
    target: str
    device: str
    threads: int | None
    vocab: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    pages: int
    page_tokens: int
    cache_bytes: int
    weight_bytes: int
    weight_seconds: float
    concurrency: float
    """requests of `max_model_len` tokens that the cache holds"""
    end_ids: list[int]
    plans: list[str]
    notes: list[str]
    """what the build says of itself: its id, how its tables answered"""
    seconds: float
    """from the first line of the process until ready"""
    import_seconds: float


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """Engine → API: requests may come."""

    version: int
    facts: Facts


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """Engine → API: these are queued."""

    keys: list[int]


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Engine → API: this cannot be served, and why; the last message about its key."""

    key: int
    message: str


class First(msgspec.Struct, frozen=True, array_like=True):
    """What is told once, with the first token. Seconds of the machine's monotonic clock."""

    cached_tokens: int
    scheduled: float
    at: float
    prompt_logprobs: list[Likelihood] | None = None


class End(msgspec.Struct, frozen=True, array_like=True):
    """How it ended: "stop", "length" or "error" (with what went wrong)."""

    finish_reason: str
    stop_reason: int | None = None
    error: str = ""


class Update(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one choice; with `end` the last message about its key."""

    key: int
    ids: list[int]
    first: First | None = None
    end: End | None = None
    logprobs: list[Likelihood] = []
    masks: list[list[int]] = []
    """token ids that each of `ids` was chosen from, where that was asked"""


class Load(msgspec.Struct, frozen=True, array_like=True):
    """The engine's counters; all but the first three only grow."""

    running: int = 0
    waiting: int = 0
    used_pages: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    decode_steps: int = 0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    decode_bytes: int = 0
    failed_steps: int = 0
    marked: dict[str, int] = {}
    """requests by what became of their watermark"""
    read_bandwidth: float = 0.0
    """bytes a second that this machine can read, 0 until it was measured"""
    group_hits: dict[str, int] = {}
    """prompt tokens that each cache group would have found by itself"""


class Stepped(msgspec.Struct, frozen=True, array_like=True, tag="stepped"):
    """Engine → API, after each step: all that came of it, in one message."""

    at: float
    updates: list[Update]
    load: Load


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Engine → API: the answer to one `Ping`."""


class Dead(msgspec.Struct, frozen=True, array_like=True, tag="dead"):
    """Engine → API, last: why the process ends, and the exit code that says so."""

    message: str
    exit_code: int = 1


ToEngine = Start | Submit | Abort | Reset | Ping | Close
ToApi = Ready | Accepted | Refused | Stepped | Pong | Dead

_ENCODER = msgspec.msgpack.Encoder()
_TO_ENGINE: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_TO_API: msgspec.msgpack.Decoder[ToApi] = msgspec.msgpack.Decoder(ToApi)
MAX_FRAME = 1 << 30


def framed(message: ToEngine | ToApi) -> bytes:
    """Return a message as it is sent: its length in four little-endian bytes, then MessagePack."""
    buffer = bytearray(4)
    _ENCODER.encode_into(message, buffer, 4)
    buffer[:4] = (len(buffer) - 4).to_bytes(4, "little")
    return bytes(buffer)


def read_to_engine(payload: bytes | memoryview) -> ToEngine:
    """Return the message to the engine. Raises msgspec.ValidationError, RequestError."""
    return _TO_ENGINE.decode(payload)


def read_to_api(payload: bytes | memoryview) -> ToApi:
    """Return the message to the API. Raises msgspec.ValidationError."""
    return _TO_API.decode(payload)


class Splitter:
    """Cuts a stream of bytes into payloads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Take bytes; return the payloads that they complete. Raises ValueError for nonsense."""
        buffer, at, found = self._buffer, 0, []
        buffer += data
        while len(buffer) - at >= 4:
            size = int.from_bytes(buffer[at : at + 4], "little")
            if size > MAX_FRAME:
                raise ValueError(f"a message of {size} bytes")
            if len(buffer) - at - 4 < size:
                break
            found.append(bytes(buffer[at + 4 : at + 4 + size]))
            at += 4 + size
        del buffer[:at]
        return found


def schema() -> dict[str, Any]:
    """Return JSON Schemas of all messages: the protocol for readers in other languages."""
    messages = [*ToEngine.__args__, *ToApi.__args__]
    schemas, parts = msgspec.json.schema_components(messages, ref_template="#/$defs/{name}")
    return {"version": VERSION, "messages": list(schemas), "$defs": parts}
