"""Writes a tiny seeded checkpoint of an architecture with cases recorded from transformers.

    python make_tiny.py CONFIG.json OUT_DIR [--variant NAME] [--seed N] [--steps N] [--dtype D]

CONFIG.json is an architecture's `tiny.json`. OUT_DIR gets config.json, generation_config.json,
model.safetensors and cases.npz: prompts of lengths 1, W−1, W, W+1, 3W+5 (W: the window, else 8),
each prefilled at once and then continued greedily through the framework's cache, in float32.
Checked before anything is written: continuing with the cache equals recomputing without it, and
no greedy margin is below 0.005, nor any router's gap below 1e-4 (other seeds are for that).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracle_cases import Case, write_cases
from published_names import PUBLISHED
from router_gaps import SMALLEST_GAP, router_gaps, smallest
from seeded import seeded_tensor
from variants import VARIANTS

CACHED_EQUALS_RECOMPUTED = 5e-5
SMALLEST_MARGIN = 0.005


def make(
    config: Mapping[str, Any],
    out: Path,
    *,
    variant: str = "all",
    seed: int | None = None,
    steps: int = 24,
    dtype: str = "float32",
) -> list[Case]:
    """Writes the folder and returns its cases; `dtype` is what the matrices are stored in."""
    chosen = VARIANTS[config["model_type"]][variant]
    seed = chosen.seed if seed is None else seed
    if config["model_type"] == "kimi_k3":  # the framework has no such class
        import make_kimi_k3

        return make_kimi_k3.make(chosen.apply(config), out, seed=seed, steps=steps)
    full = chosen.apply(config) | {"dtype": dtype}
    model = _model(full, seed, dtype)
    window = full.get("sliding_window") or 8
    lengths = [1, window - 1, window, window + 1, 3 * window + 5]
    random = np.random.default_rng(seed)
    with router_gaps(model) as gaps:
        cases = [
            _case(model, random.integers(4, full["vocab_size"], n).tolist(), steps, full)
            for n in dict.fromkeys(lengths)
            if n > 0
        ]
    gap = smallest(gaps)
    assert gap >= SMALLEST_GAP, f"a router chose by {gap}: take another seed"
    out.mkdir(parents=True, exist_ok=True)
    _write(out, full, model, getattr(torch, dtype))
    write_cases(out, cases)
    return cases


def _model(config: Mapping[str, Any], seed: int, dtype: str) -> Any:
    """The reference model with seeded weights, rounded through the stored dtype."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {k: v for k, v in config.items() if k not in ("model_type", "dtype")}
    built = AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(fields)))
    model = AutoModelForCausalLM.from_config(built, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in _stored(model).items():
            tensor = seeded_tensor(name, tuple(parameter.shape), seed)
            parameter.copy_(tensor.to(getattr(torch, dtype)))
    return model


def _stored(model: Any) -> dict[str, Any]:
    """Everything that a checkpoint holds: parameters, and buffers that are kept with them."""
    kept = model.state_dict()
    return dict(model.named_parameters()) | {
        name: buffer for name, buffer in model.named_buffers() if name in kept
    }


def _case(model: Any, ids: Sequence[int], steps: int, config: Mapping[str, Any]) -> Case:
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), use_cache=True)
        prefill, rows, fed, margins = out.logits[0], [], [], []
        last = prefill[-1]
        for _ in range(steps):
            top = last.topk(2).values
            margins.append(float(top[0] - top[1]))
            fed.append(int(last.argmax()))
            out = model(torch.tensor([fed[-1:]]), past_key_values=out.past_key_values)
            last = out.logits[0, -1]
            rows.append(last)
        whole = model(input_ids=torch.tensor([[*ids, *fed]]), use_cache=False).logits[0]
    decoded = torch.stack(rows)
    difference = float((whole[len(ids) :] - decoded).abs().max())
    assert difference <= CACHED_EQUALS_RECOMPUTED, f"cache and recomputation differ: {difference}"
    assert min(margins) >= SMALLEST_MARGIN, f"greedy margin {min(margins)}: take another seed"
    return Case(f"p{len(ids)}", np.array(ids), prefill.numpy(), np.array(fed), decoded.numpy(),
                np.array(margins, np.float32))  # fmt: skip


def _write(out: Path, config: Mapping[str, Any], model: Any, dtype: torch.dtype) -> None:
    from safetensors.torch import save_file

    tensors = PUBLISHED.get(config["model_type"], dict)(_stored(model))
    tensors = {name: p.detach().to(dtype).contiguous().clone() for name, p in tensors.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2))
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    (out / "generation_config.json").write_text(json.dumps(ids))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--variant", default="all")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    cases = make(
        json.loads(arguments.config.read_text()),
        arguments.out,
        variant=arguments.variant,
        seed=arguments.seed,
        steps=arguments.steps,
        dtype=arguments.dtype,
    )
    margin = min(float(case.margin.min()) for case in cases)
    print(f"{arguments.out}: {len(cases)} cases, smallest greedy margin {margin:.4f}")


if __name__ == "__main__":
    main()
