"""Experts of 4 bits, each in tensors of its own: found, loaded, and refused where they differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import HERE, folders, subject_of
from kernelgen_runtime.artifact.manifest import Packed, Packing, Weight, packed_shape
from kernelgen_runtime.weights.checkpoint import open_checkpoint
from kernelgen_runtime.weights.packed import fill_packed
from safetensors.torch import load_file, save_file

from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import Lowered, lowered
from kernelgen.codegen.packed import packed_source, packed_tensors
from kernelgen.core.errors import KernelgenError
from kernelgen.formats import WeightFormat
from kernelgen.ir.parameters import parameters
from kernelgen.verify.quantised import load_matrices, packed_matrices

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


@pytest.mark.row("R-026")
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


@pytest.mark.parametrize("layout", ["panel", "rows"])
def test_a_stack_is_loaded_matrix_by_matrix(folder: Path, layout: str) -> None:
    """Bytes of the stack are those of its matrices one after the other; their numbers are what
    the checkpoint means."""
    model = lowered(resolve(str(folder)), "bfloat16")
    name, matrix = next((n, m) for n, m in model.matrices.items() if n.endswith("down.weight"))
    data = packed_source(matrix)
    scale, how = data["scale"], data["packing"]
    packed = Packed(data["format"], data["rows"], data["cols"], data["code"], scale["dtype"],
                    scale["rows"], scale["group"], data["zero"], data["factor"], Packing(**how),
                    data["tensors"], data["stack"])  # fmt: skip
    checkpoint = open_checkpoint(folder)

    def filled(one: Packed) -> torch.Tensor:
        shape = packed_shape(one, layout)
        out = torch.zeros(shape, dtype=torch.uint8)
        weight = Weight(name, "uint8", shape, layout, (), 0, None, one)
        fill_packed(weight, checkpoint, out, 1 << 20)
        return out

    assert packed.is_apart
    each = [filled(packed.matrix(e)) for e in range(packed.stack)]
    assert torch.equal(filled(packed), torch.cat(each)) and not torch.equal(each[0], each[1])
    weights = [{"name": name, "source": {"packed": data}}]
    meant = load_matrices(folder, packed_matrices({"weights": weights}))[name]
    assert meant.shape == (matrix.stack, matrix.n, matrix.k) and float(meant.abs().max()) > 0


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

    with pytest.raises(KernelgenError, match="expert 3 is stored plainly, 0 is not"):
        lowered(resolve(str(damaged(folder, tmp_path, change))), "bfloat16")


def test_formats_beside_and_inside_the_text_model_agree(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(KernelgenError, match="is not what quantization_config beside it says"):
        lowered(resolve(str(tmp_path)), "bfloat16")
