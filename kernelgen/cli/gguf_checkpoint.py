"""Owns turning a GGUF file into a checkpoint folder: config, bfloat16 safetensors, tokenizer."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelgen.cli.gguf_tokenizer import Field, tokenizer_files
from kernelgen.cli.gguf_weights import read_tensors
from kernelgen.core.errors import ProblemList, UnsupportedError, UsageError, quote
from kernelgen.core.files import staged_folder
from kernelgen.core.jsonio import dumps_readable

# Metadata of the file (behind the architecture's name) and what config.json calls it.
_SAME = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}


def write_checkpoint(gguf: Path, config: Mapping[str, Any], out: Path) -> Path:
    """Writes the folder `out` (whole or not at all) with the weights of `gguf`; returns it.

    `config` is the model's published config.json: the file must agree with it in every number.
    Quantised weights are expanded and rounded to bfloat16. `UsageError` for a damaged or another
    file, `UnsupportedError` when the `gguf` library is missing.
    """
    reader = _open(gguf)

    def field(key: str) -> Any:
        found = reader.get_field(key)
        if found is None:
            raise UsageError(f"metadata {quote(key)} is missing", where=str(gguf))
        return found.contents()

    _check(field, config, gguf)
    files = {"config.json": dumps_readable(dict(config)), **tokenizer_files(field, gguf)}
    files["generation_config.json"] = _generation(field)
    with staged_folder(out) as folder:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        _save(reader, config, gguf, folder / "model.safetensors")
    return out


def _open(gguf: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UnsupportedError(
            "reading GGUF files needs the gguf library", hint="pip install 'kernelgen[demo]'"
        ) from None
    try:
        return GGUFReader(gguf)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UsageError(f"is no readable GGUF file: {error}", where=str(gguf)) from None


def _check(field: Field, config: Mapping[str, Any], gguf: Path) -> None:
    prefix = field("general.architecture")
    problems = ProblemList(str(gguf), UsageError)
    for key, name in _SAME.items():
        value, wanted = field(f"{prefix}.{key}"), config[name]
        if abs(value - wanted) > 1e-6 * abs(wanted):  # the file keeps float32
            problems.add(f"{key} is {value}", allowed=f"{name} = {wanted}")
    problems.raise_if_any()


def _generation(field: Field) -> str:
    ids = {
        "bos_token_id": int(field("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(field("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(field("tokenizer.ggml.padding_token_id")),
    }
    return dumps_readable(ids)


def _save(reader: Any, config: Mapping[str, Any], gguf: Path, path: Path) -> None:
    # The format is a length, a JSON header and the bytes: written here, since the library's own
    # function for raw bytes changes its form between versions, and its others need torch.
    tensors = list(read_tensors(reader, config, gguf))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + len(tensor.bits)
        entry = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
        header[tensor.name] = entry
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts aligned
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            file.write(tensor.bits)
