"""What each weight format costs SmolLM2-135M: KL divergence from bfloat16, and perplexity.

    python bench/format_quality.py WEIGHTS [--formats NAME,...] [--json FILE] [--record]

WEIGHTS is a checkpoint folder (`python tests/oracle/make_smollm2.py DIR` writes one); its matrices
are quantised when they are loaded, as `kernelgen build --quantization-config` asks. The texts are
those of `texts/`, all in the public domain. Every format is also compared with its own definition:
a float32 build of the plain model whose matrices were quantised and dequantised in NumPy. The two
have the same weights, so that a wrong scale, even of one matrix in a format of four bits, shows.
`--record` writes `records/format_quality.json` and RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernelgen_runtime import LLM
from results import put, table
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer

from kernelgen.cli.building import build_model
from kernelgen.cli.machine import best_isa
from kernelgen.cli.model import resolve
from kernelgen.formats import weight_format
from kernelgen.formats.reference import dequantise, quantise

HERE = Path(__file__).resolve().parent
FORMATS = (
    "fp8_tensor", "fp8_channel", "fp8_block128", "mxfp8", "int8_channel", "int7_g32", "int6_g32",
    "int5_g32", "nvfp4", "mxfp4", "int4_g32", "int4_g64", "int3_g32",
)  # fmt: skip
SAME_WEIGHTS = 2e-3
"""nats: rounding activations to bfloat16, all that differs where weights are the same, costs this
model 4e-4"""


@dataclass(frozen=True)
class Quality:
    """`divergence`: mean over places of KL(plain ‖ format), nats, `worst` its largest; `same`:
    share of places whose likeliest token is the plain model's; `definition`: the mean divergence
    of the format's definition from it."""

    perplexity: float
    divergence: float
    worst: float
    same: float
    definition: float | None = None


def texts(weights: Path) -> list[list[int]]:
    """Ids of each text."""
    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    return [tokenizer.encode(p.read_text()).ids for p in sorted((HERE / "texts").glob("*.txt"))]


def built(weights: Path, out: Path, dtype: str, name: str | None) -> Path:
    """A build for this machine; `name`: the format of all products, None leaves them plain."""
    out.mkdir(parents=True)
    asked = None
    if name is not None:
        asked = out / "online.json"
        asked.write_text(json.dumps({"linear": name}))
    isa = best_isa()
    assert isa is not None
    source = resolve(str(weights))
    made = build_model(source, ["cpu"], out / "build", isas=(isa,), online=asked, dtype=dtype)
    return Path(made.folder)


def log_probabilities(
    build: Path, weights: Path, pieces: Sequence[Sequence[int]], threads: int = 2
) -> list[Any]:
    """Natural logarithms `[tokens, vocabulary]` of each piece, float32."""
    most = max(len(ids) for ids in pieces)
    llm = LLM(build, weights, max_num_seqs=1, max_model_len=most + 8, threads=threads,
              logit_rows=64)  # fmt: skip
    found = []
    for ids in pieces:
        logits = np.asarray(llm.logits(list(ids), [])[0], np.float64)
        logits -= logits.max(1, keepdims=True)
        found.append((logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32))
    return found


def divergences(plain: Sequence[Any], found: Sequence[Any]) -> Any:
    """KL(plain ‖ found) of every place, nats."""
    return np.concatenate(
        [
            (np.exp(p.astype(np.float64)) * (p.astype(np.float64) - q)).sum(1)
            for p, q in zip(plain, found, strict=True)
        ]
    )


def quality(plain: Sequence[Any], found: Sequence[Any], pieces: Sequence[Sequence[int]]) -> Quality:
    """Of the answers of a build to pieces, against those of the plain one."""
    apart = divergences(plain, found)
    told = [q[:-1][np.arange(len(ids) - 1), ids[1:]] for q, ids in zip(found, pieces, strict=True)]
    same = [p.argmax(1) == q.argmax(1) for p, q in zip(plain, found, strict=True)]
    return Quality(
        perplexity=float(np.exp(-np.concatenate(told).astype(np.float64).mean())),
        divergence=float(apart.mean()),
        worst=float(apart.max()),
        same=float(np.concatenate(same).mean()),
    )


def write_definition(weights: Path, out: Path, name: str) -> Path:
    """The checkpoint in float32, every product of a layer quantised and dequantised in NumPy."""
    kind = weight_format(name)
    out.mkdir(parents=True)
    for file in weights.glob("*.json"):
        (out / file.name).write_bytes(file.read_bytes())
    tensors = {}
    for key, tensor in _tensors(weights):
        whole = tensor.float()
        if key.endswith("_proj.weight"):
            whole = torch.from_numpy(dequantise(kind, quantise(kind, whole.numpy()))).float()
        tensors[key] = whole.contiguous()
    save_file(tensors, out / "model.safetensors")
    return out


def _tensors(weights: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in sorted(weights.glob("*.safetensors")):
        with safe_open(file, "pt") as held:
            yield from ((key, held.get_tensor(key)) for key in held.keys())  # noqa: SIM118


def from_definition(
    weights: Path,
    work: Path,
    name: str,
    exact: Path,
    pieces: Sequence[Sequence[int]],
    found: Sequence[Any],
) -> float:
    """Mean divergence of a format's answers `found` from its definition; `exact`: a plain build in
    float32."""
    own = write_definition(weights, work / f"{name}-definition", name)
    wanted = log_probabilities(exact, own, pieces)
    (own / "model.safetensors").unlink()
    return float(divergences(wanted, found).mean())


def measured(
    weights: Path, names: Sequence[str], threads: int
) -> tuple[dict[str, Quality], list[list[int]]]:
    """Every format, the plain model first, and the texts' ids."""
    pieces = texts(weights)
    with tempfile.TemporaryDirectory(prefix="kernelgen-quality-") as folder:
        work = Path(folder)
        build = built(weights, work / "plain", "bfloat16", None)
        plain = log_probabilities(build, weights, pieces, threads)
        exact = built(weights, work / "exact", "float32", None)
        found = {"bfloat16": quality(plain, plain, pieces)}
        wide = log_probabilities(exact, weights, pieces, threads)
        found["float32 activations"] = quality(plain, wide, pieces)
        for name in names:
            build = built(weights, work / name, "bfloat16", name)
            answers = log_probabilities(build, weights, pieces, threads)
            own = from_definition(weights, work, name, exact, pieces[:2], answers[:2])
            found[name] = replace(quality(plain, answers, pieces), definition=own)
            print(f"{name}: {found[name]}", flush=True)
    return found, pieces


def allowed(found: Quality) -> float:
    """A model that its format has made unsure is moved further by the same rounding."""
    return SAME_WEIGHTS * max(1.0, found.divergence)


def markdown(found: dict[str, Quality], tokens: int, facts: dict[str, Any], command: str) -> str:
    """The table and where it is from."""
    rows = [
        (name, f"{q.perplexity:.2f}", f"{q.divergence:.4f}", f"{q.worst:.2f}", f"{q.same:.1%}",
         "–" if q.definition is None else f"{q.definition:.1e}")
        for name, q in found.items()
    ]  # fmt: skip
    head = ("format of all products", "perplexity", "KL from bfloat16, mean, nats", "worst place",
            "same likeliest token", "KL from its definition in float32")  # fmt: skip
    return "\n".join(
        [
            f"{facts['date']}, {facts['cpu']}. `{command}`; {tokens} tokens of "
            f"`bench/texts/`, weights quantised at load to the nearest, nothing calibrated.",
            "",
            *table(head, rows),
        ]
    )


def main() -> None:
    """The command line; exit code 1 where a format is not its definition."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path, help="checkpoint folder of SmolLM2-135M-Instruct")
    parser.add_argument("--formats", default=",".join(FORMATS), help="names, by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    parser.add_argument("--record", action="store_true", help="write RESULTS.md and the record")
    options = parser.parse_args()
    from smollm2_cpu import machine

    facts = machine()
    found, pieces = measured(options.weights, options.formats.split(","), options.threads)
    tokens = sum(len(ids) for ids in pieces)
    text = markdown(found, tokens, facts, "python bench/format_quality.py WEIGHTS")
    record = {**facts, "tokens": tokens, "formats": {n: asdict(q) for n, q in found.items()}}
    print(text)
    places = {options.json: json.dumps(record, indent=1) + "\n", options.markdown: text + "\n"}
    for place, content in places.items():
        if place is not None:
            place.write_text(content)
    if options.record:
        told = json.dumps(record, indent=1) + "\n"
        (HERE / "records" / "format_quality.json").write_text(told)
        put(HERE / "RESULTS.md", "format_quality", text)
    wrong = [n for n, q in found.items() if (q.definition or 0) > allowed(q)]
    if wrong:
        raise SystemExit("not what their definition says: " + ", ".join(wrong))


if __name__ == "__main__":
    main()
