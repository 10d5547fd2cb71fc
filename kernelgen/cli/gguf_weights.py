"""Owns the tensors of a GGUF file as those of a checkpoint: names, values, row order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelgen.core.errors import ProblemList, UsageError, quote

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d{1,4})\.(\w+)\.weight")


@dataclass(frozen=True)
class Tensor:
    """One checkpoint tensor in bfloat16; `bits` holds its stored 16-bit words."""

    name: str
    shape: tuple[int, ...]
    bits: bytes


def read_tensors(reader: Any, config: Mapping[str, Any], path: Path) -> Iterator[Tensor]:
    """Every tensor of an open GGUF file under its checkpoint name, rounded to bfloat16.

    `config` gives the numbers of heads. A tensor that has no place is a `UsageError`, before the
    first one is converted.
    """
    from gguf.quants import dequantize

    names = {tensor.name: _checkpoint_name(tensor.name) for tensor in reader.tensors}
    problems = ProblemList(str(path), UsageError)
    for name in (gguf_name for gguf_name, found in names.items() if found is None):
        problems.add(f"tensor {quote(name)} has no place in a checkpoint")
    problems.raise_if_any()
    order = _row_orders(config)
    for tensor in sorted(reader.tensors, key=lambda t: str(names[t.name])):
        name = str(names[tensor.name])
        values = dequantize(tensor.data, tensor.tensor_type)
        reorder = next((f for end, f in order.items() if name.endswith(end)), None)
        if reorder is not None:
            values = reorder(values)
        yield Tensor(name, tuple(values.shape), to_bfloat16(values).tobytes())


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of `values` (finite float32) rounded to bfloat16, ties to even."""
    import numpy as np

    words = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (words + 0x7FFF + ((words >> 16) & 1)) >> 16
    return rounded.astype(np.uint16)


def unpermuted(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a q or k projection `[heads · d, k]` in the order that half-split rotation needs.

    GGUF keeps the two elements that rotate together beside each other (0, d/2, 1, d/2+1, …).
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _row_orders(config: Mapping[str, Any]) -> Mapping[str, Callable[[Any], Any]]:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    return {
        "q_proj.weight": lambda rows: unpermuted(rows, heads),
        "k_proj.weight": lambda rows: unpermuted(rows, kv_heads),
    }


def _checkpoint_name(name: str) -> str | None:
    if name in _NAMES:
        return _NAMES[name]
    found = _LAYER.fullmatch(name)
    if found is None or found[2] not in _LAYER_NAMES:
        return None
    return f"model.layers.{int(found[1])}.{_LAYER_NAMES[found[2]]}.weight"
