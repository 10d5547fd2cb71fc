"""Owns transformers as a baseline: static cache, compiled decode step, greedy; a child process."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


class Peer:
    """The model with made-up weights, and one compiled forward for all cases."""

    def __init__(self, config: dict[str, Any], dtype: str, device: str) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        self._config = AutoConfig.for_model(config.pop("model_type"), **config)
        self._device = torch.device(device)
        with self._device:
            model = AutoModelForCausalLM.from_config(self._config, dtype=getattr(torch, dtype))
        self._model = model.eval()
        self._step = torch.compile(  # each batch is a program of its own, as our plans are
            self._model.forward, mode="reduce-overhead", fullgraph=True, dynamic=False
        )

    def run(self, rows: list[list[int]], tokens: int) -> tuple[float, float]:
        """Seconds until all first tokens, and of one decode step."""
        import torch
        from transformers import StaticCache

        ids = torch.tensor(rows, device=self._device)
        length = ids.shape[1] + tokens
        cache = StaticCache(config=self._config, max_cache_len=length)
        with torch.inference_mode():
            start = time.perf_counter()
            places = torch.arange(ids.shape[1], device=self._device)
            last = self._choose(self._model, ids, cache, places)
            last.tolist()
            first = time.perf_counter()
            for place in range(ids.shape[1], length - 1):
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                at = torch.tensor([place], device=self._device)
                last = self._choose(self._step, last, cache, at)
            last.tolist()
            end = time.perf_counter()
        return first - start, (end - first) / (tokens - 1)

    @staticmethod
    def _choose(forward: Any, ids: Any, cache: Any, places: Any) -> Any:
        out = forward(
            input_ids=ids,
            past_key_values=cache,
            cache_position=places,
            position_ids=places[None].expand(ids.shape[0], -1),
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1:].argmax(-1).clone()


def figures(peer: Peer, case: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Rounds of one case, after two that compile."""
    try:
        for _ in range(2):
            peer.run(case["prompts"], min(8, case["tokens"]))
        runs = [peer.run(case["prompts"], case["tokens"]) for _ in range(rounds)]
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"}
    return {"prefill_seconds": [a for a, _ in runs], "step_seconds": [b for _, b in runs]}


def main() -> None:
    """The spec of `peers.Adapter` on stdin, the answer on stdout."""
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()
    spec = json.load(sys.stdin)
    peer = Peer(spec["config"], spec["dtype"], spec["device"])
    cases = [figures(peer, case, spec["rounds"]) for case in spec["cases"]]
    print(json.dumps({"version": transformers.__version__, "cases": cases}))


if __name__ == "__main__":
    main()
