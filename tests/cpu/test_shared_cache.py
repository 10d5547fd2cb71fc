"""Layers that read another layer's keys and values: no pages of their own, and the same answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kernelgen_runtime import LLM
from kernelgen_runtime.scoring import Case
from safetensors.torch import load_file
from verify_build import Small, build, checkpoint, small

from kernelgen.codegen.families import catalogue
from kernelgen.core.errors import KernelgenError
from kernelgen.hw import parse_target
from kernelgen.ir.verify import verify_graph
from kernelgen.planner.caches import cache_schema, layer_bytes
from kernelgen.planner.planner import Planner
from kernelgen.verify.evaluate import Chunk, Evaluator, feed


def sharing(*owners: int | None) -> Small:
    """Layers of one kind; each reads the cache of the owner named, or keeps its own."""
    subject = small()
    plain = next(one for one in subject.spec.layers if one.attention.window is None)
    layers = tuple(
        replace(plain, attention=replace(plain.attention, kv_share_with=owner)) for owner in owners
    )
    return Small(subject.architecture, replace(subject.spec, layers=layers))


@pytest.mark.row("R-078")
def test_sharing_layers_have_no_bytes_of_their_own() -> None:
    graph = sharing(None, None, 0, 1, 1).graph("bfloat16")
    verify_graph(graph)
    schema, alone = cache_schema(graph.caches), cache_schema(graph.caches[:2])
    assert (schema.page_bytes, schema.groups) == (alone.page_bytes, alone.groups)
    assert schema.page_bytes == 2 * layer_bytes(graph.caches[0][1])
    assert [layer for group in schema.groups for layer in group.layers] == [0, 1]
    assert schema.places[2] == schema.places[0]
    assert schema.places[3] == schema.places[4] == schema.places[1] != schema.places[0]


@pytest.mark.row("R-078")
@pytest.mark.parametrize("owners", [(None, 2, 0), (None, 1), (None, 0, 1)])
def test_only_an_earlier_layer_that_keeps_its_own_is_shared(owners: tuple[int | None, ...]) -> None:
    with pytest.raises(KernelgenError, match=r"shares the cache of layer|layer 1 keeps"):
        verify_graph(sharing(*owners).graph("bfloat16"))


@pytest.mark.row("R-078")
def test_another_window_cannot_be_shared() -> None:
    """A page that the owner's window has left would be gone."""
    subject = sharing(None, 0)
    first, second = subject.spec.layers
    second = replace(second, attention=replace(second.attention, window=33))
    subject = Small(subject.architecture, replace(subject.spec, layers=(first, second)))
    with pytest.raises(KernelgenError, match="layer 0 keeps"):
        verify_graph(subject.graph("bfloat16"))


@pytest.mark.row("R-078")
@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("phase", ["decode", "mixed"])
def test_sharing_layers_are_planned_without_keys(target: str, phase: str) -> None:
    graph, device = sharing(None, 0).graph("bfloat16"), parse_target(target)
    planner = Planner(graph, device, device.target, catalogue(device))
    plan = planner.plan(phase, 8)
    ops = [name for launch in plan.launches if launch.layer == 1 for name in launch.kernel.ops]
    assert "attn" in ops and not {"attn.k", "attn.v", "attn.cache"} & set(ops)


@pytest.mark.row("R-078")
def test_answers_are_those_of_the_plain_model(tmp_path: Path) -> None:
    """The compiled library in chunks and token by token, against references in float64."""
    subject = sharing(None, None, 0, 1)
    weights = checkpoint(tmp_path / "weights", subject)
    folder = build(tmp_path / "build", subject, "float32")
    llm = LLM(folder, weights, device="cpu", threads=1, max_num_seqs=2, chunk_tokens=7)
    page = llm.manifest.cache.page_bytes
    assert page == 2 * layer_bytes(subject.graph("float32").caches[0][1])
    prompt = [(7 * i) % subject.spec.vocab for i in range(21)]
    fed = [3, 1, 4]
    found = llm.score([Case(tuple(prompt), tuple(fed))])[0]
    graph = subject.graph("float32")
    rules = subject.architecture.checkpoint(subject.spec, graph)
    stored = load_file(weights / "model.safetensors")
    model = Evaluator(
        graph,
        {rule.parameter: stored[rule.name] for rule in rules},
        dtype=torch.float64,
        capacity=64,
        rounded=True,
    )
    logits = model.step(feed([Chunk(0, 0, prompt + fed)], every_logit=True))["logits"].numpy()
    got = np.concatenate([found.prefill_logits, found.decode_logits])
    np.testing.assert_allclose(got, logits, rtol=0, atol=1e-4 * np.abs(logits).max())
