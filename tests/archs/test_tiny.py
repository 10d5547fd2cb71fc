"""Each architecture's tiny config: graph, checkpoint map, and numbers against its plain model."""

from __future__ import annotations

import math
import re

import pytest
import torch
from conftest import Subject
from seeded import seeded_weights

from kernelgen.archs.weight_rules import WeightRules, assembled
from kernelgen.core.dtypes import BFLOAT16, FLOAT32
from kernelgen.core.jsonio import dumps, loads
from kernelgen.ir.codec import block_from_json, block_to_json
from kernelgen.ir.graph import Role
from kernelgen.ir.parameters import parameters
from kernelgen.ir.printer import graph_text
from kernelgen.ir.verify import verify_graph
from kernelgen.ops.registry import op_kinds
from kernelgen.verify.evaluate import Chunk, Evaluator, feed

FLOAT64_BOUND = 1e-9  # both sides compute the same formulas in float64


def ids_of(count: int, vocab: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()


def evaluator(subject: Subject, requests: int = 1) -> tuple[Evaluator, dict[str, torch.Tensor]]:
    spec = subject.spec
    graph = subject.architecture.lower(spec, FLOAT32)
    rules = subject.architecture.checkpoint(spec, graph)
    weights = {
        name: tensor.double()
        for name, tensor in seeded_weights({r.name: r.shape for r in rules}, seed=11).items()
    }
    by_parameter = assembled(rules, weights.get)
    runner = Evaluator(
        graph, by_parameter, dtype=torch.float64, requests=requests, capacity=spec.max_positions
    )
    return runner, weights


@pytest.mark.parametrize("activation", [FLOAT32, BFLOAT16], ids=str)
def test_graph_is_valid_and_survives_json(subject: Subject, activation) -> None:
    graph = subject.architecture.lower(subject.spec, activation)
    verify_graph(graph)
    for block in graph.blocks:
        data = loads(dumps(block_to_json(block)), source="block")
        assert block_from_json(data, op_kinds()) == block
    values = [v for b in graph.blocks for v in b.values]
    assert {v.type.dtype for v in values if v.role is Role.STREAM} == {FLOAT32}
    kept = {v.type.dtype for v in values if v.role is Role.STATE}
    assert activation in kept and kept <= {activation, FLOAT32}


def test_graph_text_shows_every_block_and_node(subject: Subject) -> None:
    graph = subject.architecture.lower(subject.spec, FLOAT32)
    text = graph_text(graph)
    assert text == graph_text(subject.architecture.lower(subject.spec, FLOAT32))
    for block in graph.blocks:
        assert f"block {block.name}" in text
        for node in block.nodes:
            outputs = re.escape(", ".join(node.outputs))
            assert re.search(rf"^  {outputs} +=", text, re.MULTILINE), node.name


def test_distinct_layers_are_lowered_once(subject: Subject) -> None:
    spec = subject.spec
    graph = subject.architecture.lower(spec, FLOAT32)
    kinds, of_layer = spec.kinds()
    assert len(graph.blocks) == len(kinds) + 2
    assert [p.block - 1 for p in graph.sequence[1:-1]] == list(of_layer)
    assert len({b.name for b in graph.blocks}) == len(graph.blocks)


def test_checkpoint_names_and_parameters_meet_one_to_one(subject: Subject) -> None:
    spec = subject.spec
    graph = subject.architecture.lower(spec, BFLOAT16)
    rules = subject.architecture.checkpoint(spec, graph)
    wanted = {p.name: p.type.shape for p in parameters(graph)}
    held = {r.name: torch.empty(r.shape, device="meta") for r in rules}
    found = {name: tuple(t.shape) for name, t in assembled(rules, held.get).items()}
    assert found == wanted
    assert len({(r.name, r.take) for r in rules}) == len(rules)
    # Every element of a tensor is used, and none twice; lists may be longer than what is used.
    spare = sum(r.take[2] - r.take[1] for r in rules if r.take and r.held == r.take[2:])
    used = sum(t.numel() for t in held.values()) - spare
    assert used == sum(math.prod(s) for s in wanted.values())
    ignored = [re.compile(pattern) for pattern in subject.architecture.ignored(spec)]
    assert not [r.name for r in rules for pattern in ignored if pattern.fullmatch(r.name)]


def test_every_rule_is_used_by_some_config(subject: Subject) -> None:
    """A rule that names nothing is a typing mistake; biases and untied heads are optional."""
    spec = subject.spec
    graph = subject.architecture.lower(spec, FLOAT32)
    templates = {p.template for p in parameters(graph)}
    rules = subject.architecture.weights(spec)
    used = {
        parameter
        for parameter in named(rules)
        for part in ("weight", "bias")
        if parameter.replace("{part}", part) in templates
    }
    assert set(named(rules)) - used <= {"head.weight"}


def named(rules: WeightRules) -> list[str]:
    return [p for _, p in rules.pairs] + [p for _, held in rules.packed for p in held]


def test_numbers_equal_the_plain_model(subject: Subject) -> None:
    runner, weights = evaluator(subject)
    ids = ids_of(29, subject.spec.vocab, seed=1)
    logits = runner.step(feed([Chunk(0, 0, ids)], every_logit=True))["logits"]
    expected = subject.architecture.reference().forward(subject.config, weights, ids)
    assert float(expected.std()) > 0.1
    assert float((logits - expected).abs().max()) <= FLOAT64_BOUND


@pytest.mark.parametrize("cuts", [(1,) * 23, (7, 9, 1, 6), (22, 1)], ids=str)
def test_chunks_equal_one_prefill(subject: Subject, cuts: tuple[int, ...]) -> None:
    whole, weights = evaluator(subject)
    ids = ids_of(sum(cuts), subject.spec.vocab, seed=2)
    expected = subject.architecture.reference().forward(subject.config, weights, ids)
    rows, start = [], 0
    for count in cuts:
        chunk = Chunk(0, start, ids[start : start + count])
        rows.append(whole.step(feed([chunk], every_logit=True))["logits"])
        start += count
    assert float((torch.cat(rows) - expected).abs().max()) <= FLOAT64_BOUND


def test_requests_of_one_step_do_not_see_each_other(subject: Subject) -> None:
    both, weights = evaluator(subject, requests=2)
    prompts = [ids_of(19, subject.spec.vocab, seed=3), ids_of(5, subject.spec.vocab, seed=4)]
    both.step(feed([Chunk(0, 0, prompts[0][:11])]))
    streams = both.step(feed([Chunk(1, 0, prompts[1]), Chunk(0, 11, prompts[0][11:])]))
    forward = subject.architecture.reference().forward
    for row, prompt in ((0, prompts[1]), (1, prompts[0])):
        expected = forward(subject.config, weights, prompt)[-1]
        assert float((streams["logits"][row] - expected).abs().max()) <= FLOAT64_BOUND
        assert int(streams["sampled"][row]) == int(expected.argmax())


def test_a_missing_layer_part_would_be_noticed(subject: Subject) -> None:
    """Each parameter changes the result: none is loaded for nothing."""
    runner, _ = evaluator(subject)
    ids = ids_of(12, subject.spec.vocab, seed=5)
    generator = torch.Generator().manual_seed(6)
    expected = runner.step(feed([Chunk(0, 0, ids)]))["logits"]
    for name, tensor in list(runner.parameters.items()):
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        runner.parameters[name] = 1.5 * tensor + 0.5 + noise / 2  # type: ignore[index]
        changed = runner.step(feed([Chunk(0, 0, ids)]))["logits"]
        runner.parameters[name] = tensor  # type: ignore[index]
        # Shifted alone, a router or a bias of all keys would shift every score of a row alike; a
        # bias that counts for the choice alone has to move experts past each other.
        assert float((changed - expected).abs().max()) > 1e-7, name
