"""Owns options that other servers know and this build has no use for: what each is answered."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Unsupported:
    """Why an option has no effect here, and the values that ask for nothing else."""

    reason: str
    harmless: tuple[str, ...] = ()


_BUILD = "is decided when the model is built; see `kernelgen build --help`"
_FILES = "weights are read from a folder on this machine; give it with --weights"
_ONE = "this build runs on one device"
_CODE = "no code of a checkpoint or of a command line is run"
_TOKENIZER = "the tokenizer is that of --weights"

UNSUPPORTED: dict[str, Unsupported] = {
    "tokenizer": Unsupported(_TOKENIZER),
    "tokenizer-mode": Unsupported(_TOKENIZER, ("auto",)),
    "hf-overrides": Unsupported(_BUILD, ("{}",)),
    "trust-remote-code": Unsupported(_CODE, ("false",)),
    "revision": Unsupported(_FILES),
    "download-dir": Unsupported(_FILES),
    "dtype": Unsupported(_BUILD, ("auto",)),
    "seed": Unsupported("seeds belong to requests"),
    "load-format": Unsupported(
        "weights are safetensors; made-up ones are --weights random", ("auto", "safetensors")
    ),
    "model-loader-extra-config": Unsupported(_FILES, ("{}",)),
    "quantization": Unsupported(_BUILD),
    "quantization-config": Unsupported(_BUILD),
    "kv-cache-dtype": Unsupported(_BUILD, ("auto",)),
    "block-size": Unsupported("pages hold 16 tokens", ("16",)),
    "num-gpu-blocks-override": Unsupported("say --kv-cache-memory-bytes"),
    "enable-chunked-prefill": Unsupported("prompts are always computed in chunks", ("true",)),
    "no-enable-chunked-prefill": Unsupported("prompts are always computed in chunks"),
    "prefix-caching-hash-algo": Unsupported("prefixes are known by SHA-256", ("sha256",)),
    "cudagraph-capture-sizes": Unsupported(_BUILD),
    "max-cudagraph-capture-size": Unsupported(_BUILD),
    "compilation-config": Unsupported("nothing is compiled when the server starts"),
    "attention-backend": Unsupported(_BUILD),
    "speculative-config": Unsupported("there are no drafts"),
    "per-request-spec-decode-metrics": Unsupported("there are no drafts", ("false",)),
    "enable-per-request-metrics": Unsupported("metrics are sums over requests", ("false",)),
    "return-sampling-mask": Unsupported("requests ask for it with their field of that name"),
    "tensor-parallel-size": Unsupported(_ONE, ("1",)),
    "pipeline-parallel-size": Unsupported(_ONE, ("1",)),
    "data-parallel-size": Unsupported(f"{_ONE}; see docs/server.md for replicas", ("1",)),
    "enable-expert-parallel": Unsupported(_ONE, ("false",)),
    "distributed-executor-backend": Unsupported(_ONE),
    "kv-transfer-config": Unsupported("caches stay in their process"),
    "enable-sleep-mode": Unsupported("an engine that should sleep is ended", ("false",)),
    "enable-lora": Unsupported("adapters are not read", ("false",)),
    "logprobs-mode": Unsupported("they are those of the model itself", ("raw_logprobs",)),
    "middleware": Unsupported(_CODE),
    "grpc": Unsupported("it speaks HTTP", ("false",)),
    "api-server-count": Unsupported("one process speaks HTTP", ("1",)),
    "ssl-ca-path": Unsupported("say --ssl-ca-certs"),
    "disable-log-requests": Unsupported("requests are logged where --enable-log-requests says so"),
    "swap-space": Unsupported("nothing is swapped", ("0",)),
    "cpu-offload-gb": Unsupported("nothing is offloaded", ("0",)),
}
