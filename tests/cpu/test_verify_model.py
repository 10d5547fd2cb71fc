"""Whole models: recorded cases, bounds fixed beforehand, chunks and batches bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from verify_build import Small, build, checkpoint, small

from kernelgen.core.errors import UsageError
from kernelgen.verify import model_checks
from kernelgen.verify.built import read_build
from kernelgen.verify.checks import Check, Report
from kernelgen.verify.model_bounds import logit_bound
from kernelgen.verify.model_cases import Case, read_cases, write_prompts
from kernelgen.verify.model_checks import ModelUnderTest, check_model
from kernelgen.verify.own_cases import own_cases, with_narrow_runs
from kernelgen.verify.parameters import load_parameters

VOCAB = 12


def arrays(prompt: int = 3, fed: int = 2, *, decode: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "0/name": np.array("first"),
        "0/prompt_ids": np.arange(prompt),
        "0/fed_ids": np.arange(fed),
        "0/prefill_logits": rng.normal(size=(prompt, VOCAB)).astype(np.float32),
        "0/decode_logits": rng.normal(size=(fed if decode else 0, VOCAB)).astype(np.float32),
    }


def saved(folder: Path, content: dict[str, np.ndarray], name: str = "cases.npz") -> Path:
    path = folder / name
    np.savez(path, **content)
    return path


def test_cases_are_read_with_margins_from_the_logits(tmp_path: Path) -> None:
    content = arrays()
    (case,) = read_cases(saved(tmp_path, content))
    assert case.name == "first" and case.narrow is None
    rows = np.sort(np.stack([content["0/prefill_logits"][-1], content["0/decode_logits"][0]]))
    assert case.margins == pytest.approx(rows[:, -1] - rows[:, -2])


def test_recorded_margins_stand_in_for_decode_logits(tmp_path: Path) -> None:
    content = arrays(decode=False) | {"0/margin": np.array([0.5, 0.25])}
    (case,) = read_cases(saved(tmp_path, content))
    assert case.decode_logits.shape == (0, VOCAB) and case.margins.tolist() == [0.5, 0.25]


def test_bfloat16_runs_are_found_beside_the_cases(tmp_path: Path) -> None:
    content = arrays()
    both = ("prefill", "decode")
    narrow = {f"first/bf16_{what}_logits": content[f"0/{what}_logits"] + 0.25 for what in both}
    saved(tmp_path, narrow, "reference.npz")
    (case,) = read_cases(saved(tmp_path, content))
    assert case.narrow is not None
    assert logit_bound(case, "bfloat16", 1000).value == pytest.approx(0.5)


DAMAGED = {
    "no recorded case": {},
    "lacks": {k: v for k, v in arrays().items() if k != "0/fed_ids"},
    "do not fit": arrays() | {"0/prefill_logits": np.zeros((2, VOCAB), np.float32)},
    "damaged": arrays() | {"0/decode_logits": np.zeros((2, VOCAB + 1), np.float32)},
}


@pytest.mark.parametrize("text", DAMAGED)
def test_files_that_do_not_hold_cases_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read_cases(saved(tmp_path, DAMAGED[text]))


def test_files_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.npz"
    with pytest.raises(UsageError, match="no such file"):
        read_cases(path)
    path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(UsageError, match="not a file of arrays"):
        read_cases(path)
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "pickled.npy").rename(path)
    with pytest.raises(UsageError):
        read_cases(path)


def test_bounds_are_fixed_by_rule(tmp_path: Path) -> None:
    (case,) = read_cases(saved(tmp_path, arrays()))
    largest = float(np.abs(case.prefill_logits).max())
    assert logit_bound(case, "float32", 10_000_000).value == pytest.approx(1e-4 * max(1, largest))
    assert logit_bound(case, "float32", 10_000_001).value == 5e-3
    with pytest.raises(UsageError, match="no bfloat16 run"):
        logit_bound(case, "bfloat16", 1)


def test_a_report_fails_on_one_miss_and_on_nothing() -> None:
    good = Check("a", "values", 3, 0.1, 0.2, True)
    bad = replace(good, error=0.3, passed=False)
    assert Report("m", "cpu", "float32", True, (good,)).passed
    assert not Report("m", "cpu", "float32", True, (good, bad)).passed
    assert not Report("m", "cpu", "float32", True, ()).passed
    assert "1 missed" in Report("m", "cpu", "float32", True, (good, bad), ("note",)).summary


@pytest.fixture(scope="module")
def subject() -> Small:
    return small()


@pytest.fixture(scope="module")
def weights(subject: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("weights"), subject)


def cases_of(subject: Small, weights: Path, dtype: str) -> tuple[Case, ...]:
    graph = subject.graph("float32")
    rules = subject.architecture.checkpoint(subject.spec, graph)
    parameters = load_parameters(weights, rules)
    cases = own_cases(graph, parameters, subject.spec.vocab)
    if dtype == "float32":
        return cases
    return with_narrow_runs(cases, subject.graph(dtype), parameters)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_build_agrees_with_its_references_in_any_cut(
    subject: Small, weights: Path, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = {"float32": 1, "bfloat16": 7}[dtype]  # each is a process
    monkeypatch.setattr(model_checks, "CHUNKS", (chunk,))
    cases = cases_of(subject, weights, dtype)
    model = ModelUnderTest(read_build(build(tmp_path / "b", subject, dtype)), weights)
    checks = check_model(model, cases)
    assert all(c.passed for c in checks), [c for c in checks if not c.passed]
    named = {c.name: c for c in checks}
    assert {f"model: chunks of {chunk}", "model: mixed batch"} <= named.keys()
    logits = [c for c in checks if c.what == "logits"]
    assert len(logits) == len(cases) and all(0 < c.error < c.bound for c in logits)
    # Logits of a tiny model are of order one: a bound that allowed anything would show here.
    assert all(c.bound < (1e-3 if dtype == "float32" else 0.5) for c in logits)


def test_fusion_changes_no_bit(subject: Small, weights: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.npz"
    ids = np.random.default_rng(4).integers(0, subject.spec.vocab, 40).tolist()
    write_prompts(prompts, {"0": (ids[:29], ids[29:33])})
    found = []
    for fusion in (True, False):
        folder = build(tmp_path / str(fusion), subject, "bfloat16", fusion=fusion)
        found.append(ModelUnderTest(read_build(folder), weights).logits(prompts)["0"])
    assert found[0].shape == (33, subject.spec.vocab)
    assert np.array_equal(found[0].view(np.int32), found[1].view(np.int32))


def test_a_wrong_kernel_is_seen_in_the_model(
    subject: Small, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The residual scale left out of one kernel: logits and, with them, the verdict."""
    monkeypatch.setattr(model_checks, "CHUNKS", ())
    healthy = read_build(build(tmp_path / "a", subject, "float32"))
    nodes = {k.name: [node.name for node in k.block.nodes] for k in healthy.kernels}
    victim = next(name for name, covered in nodes.items() if "mlp.residual" in covered)
    broken = build(
        tmp_path / "b",
        subject,
        "float32",
        mutations={victim: lambda source: source.text.replace(" * 0.26f", "")},
    )
    cases = cases_of(subject, weights, "float32")
    checks = check_model(ModelUnderTest(read_build(broken), weights), cases)
    logits = [c for c in checks if c.what == "logits"]
    assert logits and not any(c.passed for c in logits)
    assert all(c.error > 100 * c.bound for c in logits)


def test_a_model_that_does_not_run_is_a_miss(subject: Small, tmp_path: Path) -> None:
    built = read_build(build(tmp_path / "b", subject, "float32"))
    (tmp_path / "empty").mkdir()
    content = arrays()
    for what in ("prefill", "decode"):
        content[f"0/{what}_logits"] = np.zeros(
            (len(content[f"0/{what}_logits"]), subject.spec.vocab), np.float32
        )
    cases = read_cases(saved(tmp_path, content))
    (check,) = check_model(ModelUnderTest(built, tmp_path / "empty"), cases)
    assert not check.passed and check.what == "ends" and str(tmp_path / "empty") in check.detail
    with pytest.raises(UsageError, match="recorded for 12 token ids"):
        check_model(ModelUnderTest(built, tmp_path), read_cases(saved(tmp_path, arrays())))
