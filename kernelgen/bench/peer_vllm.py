"""Owns vLLM as a baseline: its offline interface with made-up weights; a child process."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def figures(llm: Any, case: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Rounds of one case: a step is the time of all tokens but that of the first, divided."""
    from vllm import SamplingParams  # type: ignore[import-not-found,unused-ignore]

    def seconds(tokens: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        asked = [{"prompt_token_ids": ids} for ids in case["prompts"]]
        start = time.perf_counter()
        llm.generate(asked, params, use_tqdm=False)
        return time.perf_counter() - start

    seconds(4)
    first = [seconds(1) for _ in range(rounds)]
    whole, steps = [seconds(case["tokens"]) for _ in range(rounds)], case["tokens"] - 1
    return {
        "prefill_seconds": first,
        "step_seconds": [(a - b) / steps for a, b in zip(whole, first, strict=True)],
    }


def main() -> None:
    """The spec of `peers.Adapter` on stdin, the answer on stdout."""
    import vllm  # type: ignore[import-not-found,unused-ignore]

    spec = json.load(sys.stdin)
    longest = max(len(case["prompts"][0]) + case["tokens"] for case in spec["cases"])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(spec["config"]))
        llm = vllm.LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype=spec["dtype"],
            max_model_len=longest + 1,
            enable_prefix_caching=False,
        )
        cases = [figures(llm, case, spec["rounds"]) for case in spec["cases"]]
    print(json.dumps({"version": vllm.__version__, "cases": cases}))


if __name__ == "__main__":
    main()
