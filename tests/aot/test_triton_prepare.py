"""The launch that opens a step: ids, positions and request rows of real and padding rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_trials import architectures, tiny, words_of

from kernelgen.codegen.triton.prepare import prepare_kernel
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.ir.types import Sizes
from kernelgen.verify.arguments import block_tables, token_ids
from kernelgen.verify.guarded import Guarded
from kernelgen.verify.interpreter import interpret
from kernelgen.verify.scenario import scenarios


@pytest.mark.parametrize("phase", ["decode", "mixed"])
def test_step_values(phase: str) -> None:
    model = tiny(architectures()[0], BFLOAT16)
    one = prepare_kernel(model.args, model.vocab).passes[0]
    for scenario in scenarios(phase, model.positions, 513):
        rng = np.random.default_rng(3)
        ids = token_ids(scenario, model.vocab, rng)
        ids.given[-1] = model.vocab + 5 if scenario.owners[-1] >= 0 else 0  # clamped, not believed
        words = words_of(model, scenario, block_tables(scenario, (), rng), ids)
        plan = scenario.tokens + 5
        found = {name: Guarded((plan,), "int32") for name in ("token_ids", "positions", "rows")}
        sources = found | {
            "args": Guarded.of(words),
            "last_sampled": Guarded.of(torch.from_numpy(ids.last_sampled)),
        }
        names = [a.name for a in one.unit.signature]
        arguments = [plan if n == "total" else sources[n].tensor for n in names]
        interpret(one.unit, one.grid(Sizes(plan, plan, 64)), arguments)
        wanted = ids.meant.tolist()
        if scenario.owners[-1] >= 0:
            wanted[-1] = model.vocab - 1
        assert found["token_ids"].tensor.tolist() == [*wanted, *[-1] * 5], scenario.name
        assert found["positions"].tensor.tolist() == [*scenario.positions, *[0] * 5], scenario.name
        assert found["rows"].tensor.tolist() == [*scenario.owners, *[-1] * 5], scenario.name
        assert not any(g.damage() for g in sources.values())
