"""Experts of 4 bits, each in tensors of its own: found, and refused where they differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import HERE, folders, subject_of
from safetensors.torch import load_file, save_file

from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import Lowered, lowered
from kernelgen.codegen.packed import packed_tensors
from kernelgen.core.errors import KernelgenError
from kernelgen.formats import WeightFormat
from kernelgen.ir.parameters import parameters

SUBJECT = next(
    s for s in (subject_of(f) for f in folders() if f.parent != HERE) if "text_config" in s.config
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint as it is published: plain matrices in bfloat16, experts in 4 bits."""
    import make_kimi_k3

    out = tmp_path_factory.mktemp("packed")
    make_kimi_k3.make(SUBJECT.config, out, seed=5, steps=1, packed=True)
    return out


def formats_in(model: Lowered) -> dict[str, str]:
    """Kind of parameter → format, of what is packed."""
    return {
        ".".join(p.name.split(".")[2:-1]): p.type.dtype.name
        for p in parameters(model.graph)
        if isinstance(p.type.dtype, WeightFormat)
    }


EXPERTS = {f"mlp.experts.{part}": "mxfp4" for part in ("gate", "up", "down")}


@pytest.mark.parametrize("at_hand", [True, False])
def test_experts_alone_are_packed(folder: Path, tmp_path: Path, at_hand: bool) -> None:
    """The published exceptions name neither the router nor the products around the narrow copy;
    with and without a checkpoint they are plain."""
    source = folder
    if not at_hand:
        source = tmp_path
        shutil.copy(folder / "config.json", tmp_path)
    model = lowered(resolve(str(source)), "bfloat16")
    assert formats_in(model) == EXPERTS
    stacks = [m for name, m in model.matrices.items() if ".experts." in name]
    assert {m.stack for m in stacks} == {SUBJECT.fields["num_experts"]}
    held = {t["name"] for t in packed_tensors(model.matrices.values())}
    stored = {n for n in load_file(folder / "model.safetensors") if ".experts." in n}
    drafts = {n for n in stored if f".layers.{SUBJECT.fields['num_hidden_layers']}." in n}
    assert held == stored - drafts


def damaged(folder: Path, out: Path, change: Any) -> Path:
    shutil.copy(folder / "config.json", out)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors")
    return out


def test_an_expert_that_is_stored_plainly_is_named(folder: Path, tmp_path: Path) -> None:
    root = "language_model.model.layers.1.block_sparse_moe.experts.3.w2"

    def change(tensors: dict[str, Any]) -> None:
        codes = tensors.pop(f"{root}.weight_packed")
        del tensors[f"{root}.weight_scale"]
        plain = torch.zeros(codes.shape[0], 2 * codes.shape[1], dtype=torch.bfloat16)
        tensors[f"{root}.weight"] = plain

    with pytest.raises(
        KernelgenError, match=r"experts\.3\.w2 is not stored as .*experts\.0\.w2 is"
    ):
        lowered(resolve(str(damaged(folder, tmp_path, change))), "bfloat16")


def test_formats_beside_and_inside_the_text_model_agree(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(KernelgenError, match="is not what quantization_config beside it says"):
        lowered(resolve(str(tmp_path)), "bfloat16")
