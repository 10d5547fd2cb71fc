"""Quantised experts on the CPU against dequantise-then-float64, pair by pair and sorted."""

from __future__ import annotations

import pytest
from moe_blocks import Shape, built, operands, wrong

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.verify.compare import different

FORMATS = ("nvfp4", "fp8_channel", "mxfp4", "int4_g32", "fp8_block128")
KINDS: tuple[DType, ...] = (FLOAT32, BFLOAT16)
CASES = [(name, KINDS[i % 2]) for i, name in enumerate(FORMATS)]


def shape_of(kind: str) -> Shape:
    """Columns fill no panel; K fills groups, and where a format lets it, no block of them."""
    if kind.startswith("fp8"):
        return Shape(hidden=150, inner=45, shared=0, format=kind)
    return Shape(hidden=192, inner=64, shared=33, format=kind)


@pytest.mark.row("R-068")
@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_kernels_are_right(kind: str, dtype: DType) -> None:
    shape = shape_of(kind)
    made = built(shape, dtype)
    for tokens in (1, 3, 130):
        given = operands(made, shape, tokens, seed=tokens)
        first = made.run(made.plans[0], given)
        assert wrong(made, given, first, shape) == 0
        assert different(first, made.run(made.plans[1], given)) == 0


def checkpoint(folder: Path) -> Path:
    """The tiny model with routed experts: config and random weights."""
    tiny = next(a for a in architectures().values() if "num_local_experts" in config_of(a))
    config = read_config(tiny.folder / "tiny.json")
    spec = tiny.read(config)
    made, tensors = torch.Generator().manual_seed(5), {}
    for rule in tiny.checkpoint(spec, tiny.lower(spec, FLOAT32)):
        rows = 2 if rule.take is not None else 1
        shape = (*rule.shape[:-2], rule.shape[-2] * rows, rule.shape[-1]) if rows > 1 else rule.shape
        random = torch.randn(rule.shape, generator=made)
        vector = len(rule.shape) == 1
        tensors[rule.name] = random * 0.3 + 1 if vector else random * rule.shape[-1] ** -0.5
    folder.mkdir()
    (folder / "config.json").write_text((tiny.folder / "tiny.json").read_text())
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.row("R-063")
@pytest.mark.row("R-068")
def test_a_model_with_quantised_experts_from_config_to_logits(tmp_path: Path) -> None:
    """Quantised at load, kernels and all: logits within the bound of the dequantised model."""
    architecture = next(a for a in architectures().values() if "experts" in tiny_text(a.folder))
    source = ModelSource("tiny", "tiny", read_config(architecture.folder / "tiny.json"))
    online = tmp_path / "online.json"
    online.write_text(json.dumps({"moe": "fp8_per_channel", "linear": "int8_per_channel_weight_only"}))
    made = build_model(
        source, ["cpu"], tmp_path / "out", isas=(this_isa(),), dtype="float32", online=online
    )
    subject = read_build(Path(made.folder))
    cases = completed_cases(source, subject, None)
    checks = check_model(ModelUnderTest(subject, None), cases)
    missed = [f"{c.subject} {c.what}: {c.error} {c.detail}" for c in checks if not c.passed]
    assert not missed, "\n".join(missed)


def tiny_text(folder: Path) -> str:
    return (folder / "tiny.json").read_text()
