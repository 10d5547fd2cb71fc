"""Owns what `bench` is given: a build, or a model that is built for the device of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen.archs.registry import builtin_config, builtin_models
from kernelgen.cli import console
from kernelgen.cli.gpus import gpus_here, refuse_missing_gpu
from kernelgen.cli.model import ModelSource, resolve
from kernelgen.compile.store import default_root
from kernelgen.core.errors import UsageError
from kernelgen.core.jsonio import load_object
from kernelgen.hw import device_of_driver_name
from kernelgen.pack.bundle import MANIFEST


@dataclass(frozen=True)
class Subject:
    """A build to measure, and the config.json of its model where it is known."""

    build: Path
    config: Mapping[str, Any] | None


def subject(text: str, target: str | None, dtype: str | None) -> Subject:
    """The build behind MODEL_OR_BUILD; a model is built first, beside the compiler's cache, with
    bfloat16 activations unless `dtype` says otherwise.

    `UsageError` for what is neither, `NoDeviceError` and `UnsupportedError` where `target` is for
    a GPU that is not here; those before anything is built.
    """
    path = Path(text).expanduser()
    if path.suffix == ".whl" or (path / MANIFEST).is_file():
        if target is not None:
            raise UsageError("is for models; a build has its targets", where="--target")
        if dtype is not None:
            raise UsageError("is for models; a build has its own", where="--dtype")
        return Subject(path, _known_config(path))
    source = resolve(text)
    made = _built(source, target or _this_target(), dtype or "bfloat16")
    return Subject(made, source.config.data)


def _built(source: ModelSource, target: str, dtype: str) -> Path:
    from kernelgen.cli.building import build_model

    refuse_missing_gpu(target, "`kernelgen bench MODEL --target cpu` measures the processor")
    out = default_root() / "bench" / target.replace(":", "-") / dtype
    with console.progress(f"building {source.name}") as progress:
        done = build_model(source, [target], out, dtype=dtype, progress=progress)
    console.say(f"built {source.name} for {target} in {done.seconds:.1f} s")
    return Path(done.folder)


def _this_target() -> str:
    """The target of this machine's first GPU, else the CPU."""
    gpus = gpus_here()
    if not gpus:
        return "cpu"
    device = device_of_driver_name(gpus[0].name)
    return device.target if device else f"sm_{gpus[0].sm}"


def _known_config(build: Path) -> Mapping[str, Any] | None:
    """The built-in config of the model that a build folder says it is."""
    if build.suffix == ".whl":
        return None
    name = load_object(build / MANIFEST).get("name")
    known = isinstance(name, str) and name in builtin_models()
    return builtin_config(str(name)).data if known else None


def parse_baselines(
    text: str | None, known: tuple[str, ...], default: tuple[str, ...]
) -> tuple[str, ...]:
    """ "cublas,sdpa" as names, "none" as nothing; `UsageError` for a name that is not known."""
    if text is None:
        return default
    words = [word.strip() for word in text.split(",")]
    if words == ["none"]:
        return ()
    for word in words:
        if word not in known:
            raise UsageError(
                f"is {word!r}", where="--baseline", allowed=f"none, {', '.join(known)}"
            )
    return tuple(dict.fromkeys(words))


def repeated(model: str, **options: str | int | bool | None) -> tuple[str, ...]:
    """The command line of these options; what is None or False was not given."""
    words = ["kernelgen", "bench", model]
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        words.extend([] if value is True else [str(value)])
    return tuple(words)
