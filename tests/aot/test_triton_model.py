"""Whole tiny models through the runtime, all kernels under Triton's interpreter: logits, ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fake_cuda import H200, FakeCuda
from gpu_trials import all_architectures
from interpreted import InterpretedLibrary, Model, planned
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.open import Artifact
from kernelgen_runtime.device.choose import Choice
from kernelgen_runtime.device.cuda import CudaDevice
from kernelgen_runtime.launch.cuda_runner import CudaRunner
from kernelgen_runtime.sample.reference import Rules, edited, kept, likelihood, sample
from kernelgen_runtime.scoring import Case
from runtime_fakes import manifest_of
from safetensors.torch import save_file
from seeded import seeded_weights

import kernelgen.archs
from kernelgen.archs.weight_rules import assembled
from kernelgen.cli.model import ModelSource
from kernelgen.cli.pipeline import lowered
from kernelgen.core.dtypes import FLOAT8
from kernelgen.ir.op import Trait
from kernelgen.lower.float8_cache import with_float8_cache, without_scales
from kernelgen.spec.config import ConfigFile
from kernelgen.verify.evaluate import Chunk, Evaluator, feed

# One row, a few rows, more rows than requests may have: each product family serves one of them.
DECODE, MIXED = (1, 3), (8,)
CONTEXT = 64  # few splits: each block is interpreted
LAYERS = 4  # in which every kind of layer occurs, rotated or not, with a window or without
# Experts are interpreted pair by pair, which takes a minute a layer; their attention is no other.
LAYERS_OF_EXPERTS = 2
# Of the largest logit. float32: two programs. bfloat16: a logit has some 12 roundings of 2⁻⁹ to
# 2⁻⁸ on its path, and 2⁻⁸ · 12 = 0.047.
BOUND = {"float32": 1e-4, "bfloat16": 0.047}


@dataclass(frozen=True)
class Subject:
    """A tiny model loaded with seeded weights, and its plain model's logits."""

    model: Model
    llm: LLM
    library: InterpretedLibrary
    config: dict[str, Any]
    weights: dict[str, torch.Tensor]
    dtype: str

    def expected(self, ids: list[int]) -> np.ndarray:
        """Logits after each token, in float64."""
        reference = self.model.lowered.architecture.reference()
        return reference.forward(self.config, self.weights, ids).numpy()

    def close(self, found: np.ndarray, ids: list[int]) -> bool:
        wanted = self.expected(ids)
        bound = BOUND[self.dtype] * np.abs(wanted).max()
        return found.shape == wanted.shape and bool(np.abs(found - wanted).max() <= bound)


def has_experts(config: dict[str, Any]) -> bool:
    graph = lowered(ModelSource("tiny", "tiny", ConfigFile("tiny.json", config)), "float32").graph
    return any(node.op.has(Trait.EXPERTS) for block in graph.blocks for node in block.nodes)


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """The first layers alone; lists with an entry a layer are cut too. One layer of each kind where
    lists number them."""
    if "text_config" in config:
        return config | {"text_config": shortened(config["text_config"])}
    if numbered := config.get("linear_attn_config"):
        kinds = {"kda_layers": [1], "full_attn_layers": [2]}
        few = {"num_hidden_layers": 2, "first_k_dense_replace": 2}  # experts are tried elsewhere
        return config | few | {"linear_attn_config": numbered | kinds}
    before = config["num_hidden_layers"]
    layers = min(LAYERS_OF_EXPERTS if has_experts(config) else LAYERS, before)
    cut = {k: v[:layers] for k, v in config.items() if isinstance(v, list) and len(v) == before}
    # Where all layers are alike, two of them are handed on to one another as any number are.
    layers = layers if cut else 2
    return config | cut | {"num_hidden_layers": layers}


def ids_of(count: int, vocab: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()


NAMES = all_architectures()
# float32 has the sharper bound; bfloat16 is planned otherwise.
SUBJECTS = [*((name, "float32") for name in NAMES[:-1]), (NAMES[-1], "bfloat16")]


def scales_of(model: Model) -> dict[str, torch.Tensor]:
    """Of keys and of values, as compressed-tensors names them."""
    found = {}
    for number, (keys, values) in enumerate(model.lowered.scalars.values()):
        found[keys[0]] = torch.tensor(0.02 * (number + 1))
        found[values[0]] = torch.tensor(0.03 * (number + 1))
    return found


@cache
def loaded(name: str, dtype: str, kept: str = "auto") -> Subject:
    """`kept`: the type of its cache; the scales of an 8-bit one differ from layer to layer."""
    folder = Path(kernelgen.archs.__file__).parent / name
    config = shortened(json.loads((folder / "tiny.json").read_text()))
    source = ModelSource("tiny", "tiny", ConfigFile("tiny.json", config))
    model = planned(source, "sm_90", dtype, DECODE, MIXED, CONTEXT, cache=kept)
    graph = without_scales(model.lowered.graph)
    rules = model.lowered.architecture.checkpoint(model.lowered.spec, graph)
    weights = seeded_weights({rule.name: rule.shape for rule in rules}, seed=11)
    weights = {name: tensor.bfloat16() for name, tensor in weights.items()}
    gpu = FakeCuda(eager=True)
    library, made = InterpretedLibrary(model.program, gpu), manifest_of(model.manifest)
    with (
        TemporaryDirectory() as checkpoint,
        mock.patch("kernelgen_runtime.llm.open_device", lambda _: CudaDevice(gpu)),
        mock.patch.object(CudaRunner, "warm_up", lambda self: None),  # a test below does as much
    ):
        save_file(weights | scales_of(model), Path(checkpoint) / "model.safetensors")
        (Path(checkpoint) / "config.json").write_text(json.dumps(config))
        llm = LLM(
            Artifact((made,), Path("tiny")),
            checkpoint,
            device=Choice(made, H200),
            max_num_seqs=4,
            max_num_batched_tokens=MIXED[-1],
            max_model_len=96,
            kv_cache_memory_bytes=made.cache.page_bytes * 60,
            logit_rows=MIXED[-1],
            graphs=False,
            enable_prefix_caching=False,  # what is free is poisoned
            library=library,
            threads=1,
        )
    exact = {n: t.double() for n, t in weights.items()}
    return Subject(model, llm, library, config, exact, dtype)


@pytest.fixture(params=SUBJECTS, ids="-".join)
def subject(request: pytest.FixtureRequest) -> Subject:
    return loaded(*request.param)


@pytest.fixture
def one() -> Subject:
    """The first of them, for what does not depend on the architecture."""
    return loaded(*SUBJECTS[0])


def test_prompt_and_continuation(subject: Subject) -> None:
    """A prompt of more than a page in chunks, then tokens one by one; short ones side by side."""
    vocab = subject.model.lowered.spec.vocab
    cases = [Case(tuple(ids_of(n, vocab, n)), tuple(ids_of(2, vocab, 7))) for n in (18, 3)]
    short = [Case(case.prompt_ids[:2], case.fed_ids[:1]) for case in cases]
    for batch in (cases, short):
        for case, score in zip(batch, subject.llm.score(batch), strict=True):
            found = np.concatenate([score.prefill_logits, score.decode_logits])
            assert subject.close(found, [*case.prompt_ids, *case.fed_ids])
    following = subject.model.program.following.values()
    later = {one.unit.name for kernel in following for one in kernel.passes}
    assert {
        unit.name for unit in subject.model.program.units()
    } - later == subject.library.done - later


# A number that lies between two codes may take either, where it was rounded to bfloat16 before.
BOUND_OF_CODES = {"float32": 1e-4, "bfloat16": 0.08}


def keeping_codes() -> list[str]:
    """Architectures without experts, some layers of which keep keys and values as codes."""
    found = []
    for name in NAMES:
        path = Path(kernelgen.archs.__file__).parent / name / "tiny.json"
        config = json.loads(path.read_text())
        source = ModelSource("tiny", "tiny", ConfigFile("tiny.json", config))
        caches = lowered(source, "float32", cache="fp8").graph.caches
        if not has_experts(config) and any(getattr(c, "dtype", None) == FLOAT8 for _, c in caches):
            found.append(name)
    return found


KEEPING = keeping_codes()


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in KEEPING[:-1]), (KEEPING[-1], "bfloat16")]
)
def test_an_8_bit_cache(name: str, dtype: str) -> None:
    """Keys and values under scales of their own, in prompts by chunks and tokens one by one; the
    reference keeps the same codes. Half the bytes, but for layers with a window."""
    subject, plain = loaded(name, dtype, "fp8"), loaded(name, dtype)
    spec = subject.model.lowered.spec
    source = ModelSource("tiny", "tiny", ConfigFile("tiny.json", subject.config))
    graph = with_float8_cache(lowered(source, "float32", cache="float32").graph)
    rules = subject.model.lowered.architecture.checkpoint(spec, without_scales(graph))
    scales = scales_of(subject.model)
    parameters = assembled(rules, subject.weights.get) | {
        parameter: torch.tensor([float(scales[names[0]]) for names in sides])
        for parameter, sides in subject.model.lowered.scalars.items()
    }
    cases = [
        Case(tuple(ids_of(n, spec.vocab, n)), tuple(ids_of(2, spec.vocab, 7))) for n in (18, 3)
    ]
    for case, score in zip(cases, subject.llm.score(cases), strict=True):
        ids = [*case.prompt_ids, *case.fed_ids]
        model = Evaluator(graph, parameters, dtype=torch.float64, capacity=len(ids), rounded=True)
        wanted = model.step(feed([Chunk(0, 0, ids)], every_logit=True))["logits"].numpy()
        found = np.concatenate([score.prefill_logits, score.decode_logits])
        assert np.abs(found - wanted).max() <= BOUND_OF_CODES[dtype] * np.abs(wanted).max()
        assert np.abs(wanted - plain.expected(ids)).max() > 1e-3 * np.abs(wanted).max()
    bytes_of = [one.model.manifest["targets"][0]["cache"]["page_bytes"] for one in (subject, plain)]
    windows = any(group.window for group in subject.model.program.cache.groups)
    ratio = {"float32": 4, "bfloat16": 2}[dtype]
    assert bytes_of[0] * ratio == bytes_of[1] if not windows else bytes_of[0] <= bytes_of[1]


def test_sampled_ids_follow_from_the_logits(one: Subject) -> None:
    """Greedy and with each filter, in one batch: the law of the reference on the same logits."""
    vocab = one.model.lowered.spec.vocab
    laws = [(0.0, 0, 1.0, 3), (0.9, 0, 1.0, 2**40), (1.1, 9, 0.8, 5)]
    prompts = [ids_of(1 + i // 2, vocab, i) for i in range(3)]
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, seed=s, max_tokens=2, ignore_eos=True)
        for t, k, p, s in laws
    ]
    outputs = one.llm.generate(prompts, params)
    whole = [Case((*p, *o.token_ids)) for p, o in zip(prompts, outputs, strict=True)]
    for prompt, law, output, score in zip(
        prompts, laws, outputs, one.llm.score(whole), strict=True
    ):
        rows = score.prefill_logits[len(prompt) - 1 : -1]
        wanted = [sample(row, len(prompt) + i, *law) for i, row in enumerate(rows)]
        assert list(output.token_ids) == wanted


def poison(one: Subject) -> None:
    """Fill all that a step must not depend on with ones: NaN in every dtype."""
    bound, tables = one.library.bound, one.llm.engine.scheduler.cache
    bound["workspace"].fill_(0xFF)
    bound["logits"].fill_(float("nan"))
    bound["sampled"].fill_(-7)
    held = {int(page) for table in tables.tables for page in np.unique(table)} - {0}
    free = [page for page in range(len(bound["cache"])) if page not in held]
    bound["cache"][free] = 0xFF


def test_padding_and_free_pages_hold_nan_and_nothing_changes(one: Subject) -> None:
    """Two requests in a plan of three rows, their prompts in a plan of eight."""
    vocab, library = one.model.lowered.spec.vocab, one.library
    cases = [Case(tuple(ids_of(n, vocab, n)), (5,)) for n in (4, 2)]
    clean = one.llm.score(cases)
    with mock.patch.object(library, "before", lambda: poison(one)):
        poisoned = one.llm.score(cases)
    for one, other in zip(clean, poisoned, strict=True):
        assert np.array_equal(one.prefill_logits, other.prefill_logits)
        assert np.array_equal(one.decode_logits, other.decode_logits)


def test_a_step_without_tokens_changes_nothing(one: Subject) -> None:
    runner: Any = one.llm.program._runner
    poison(one)
    names = ("cache", "last_sampled", "sampled", "logits")
    kept = {name: one.library.bound[name].clone() for name in names}
    for plan in one.llm.program._plans.all:
        runner.args().write_nothing(plan)
        assert runner.start(plan, 0)().ids.tolist() == []
    for name, tensor in kept.items():
        now = one.library.bound[name]
        assert torch.equal(tensor.view(torch.uint8), now.view(torch.uint8)), name
    assert not one.library.bound["counters"].any()


@pytest.mark.soak
@pytest.mark.row("B-08")
def test_what_follows_a_step(one: Subject) -> None:
    """Rules, log-probabilities and kept sets of requests in one batch, two steps in flight."""
    penalties = {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "logit_bias": {5: 1.0}}
    params = [
        SamplingParams(
            max_tokens=2, seed=5, top_k=7, logprobs=2, return_sampling_mask=True, **penalties
        ),
        SamplingParams(max_tokens=2, temperature=0.0, prompt_logprobs=1),
    ]
    vocab = one.model.lowered.spec.vocab
    prompts = [ids_of(n, vocab, n) for n in (2, 4)]
    outputs = one.llm.generate(prompts, params)
    for output, wanted in zip(outputs, params, strict=True):
        prompt, ids = output.prompt_ids, output.token_ids
        (scored,) = one.llm.score([Case(prompt, ids[:-1])])
        rows = [scored.prefill_logits[-1], *scored.decode_logits]
        for i, (row, chosen) in enumerate(zip(rows, ids, strict=True)):
            rules = Rules(wanted, prompt, ids[:i])
            position, temperature = len(prompt) + i, float(np.float32(wanted.temperature))
            law = (wanted.top_k, wanted.top_p, wanted.seed or 0, wanted.min_p, rules)
            assert sample(row, position, temperature, *law) == chosen
            if output.kept is not None:
                left = kept(edited(row, rules), temperature, *law[:2], wanted.min_p)
                assert output.kept.row(i).tolist() == np.flatnonzero(np.isfinite(left)).tolist()
            if output.logprobs is not None:
                told, meant = output.logprobs[i], likelihood(row, chosen, 2)
                assert (told.token, told.rank) == (meant.token, meant.rank)
                assert told.logprob == pytest.approx(meant.logprob, rel=1e-5, abs=1e-5)
        if output.prompt_logprobs is not None:
            assert output.prompt_logprobs[0] is None
            for told, row, token in zip(
                output.prompt_logprobs[1:], scored.prefill_logits, prompt[1:], strict=False
            ):
                assert told is not None
                meant = likelihood(row, token, 1)
                assert (told.token, told.rank) == (meant.token, meant.rank)
                assert told.logprob == pytest.approx(meant.logprob, rel=1e-5, abs=1e-5)
