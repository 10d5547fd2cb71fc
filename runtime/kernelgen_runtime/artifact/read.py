"""Owns turning `manifest.json` into checked manifests, one a target: every problem is listed."""

import re
from pathlib import Path, PurePosixPath

from ..errors import ArtifactError, listing, shown
from .bounded_json import Json, read_json
from .fields import INT32_MAX, Fields
from .manifest import CPU, Library, Manifest, Model, TensorSpec, target_sm
from .relations import ABI, check_model, check_target
from .sections import (
    each_once,
    read_args,
    read_cache,
    read_plan,
    read_rules,
    read_shape,
    read_weight,
)

SCHEMA = 2
MAX_MANIFEST_BYTES = 256 << 20
MAX_ITEMS = 1 << 20
_LIBRARY = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*\.so")


def read_manifests(path: Path) -> tuple[Manifest, ...]:
    """Read and check the manifest at `path`: the model for each target it was built for.

    Raises ArtifactError listing up to 20 problems.
    """
    values = read_json(path, MAX_MANIFEST_BYTES, ArtifactError)
    for key, known in (("abi", ABI), ("schema", SCHEMA)):
        if values.get(key) != known or isinstance(values.get(key), bool):
            raise ArtifactError(
                f"{path}: {key} is {shown(values.get(key))}, this runtime knows {known} only; "
                "build the model again with the kernelgen that belongs to this runtime"
            )
    problems: list[str] = []
    manifests = parse_manifests(values, problems)
    if problems:
        raise ArtifactError(listing(f"{path}: not a usable manifest", problems))
    return manifests


def parse_manifests(values: dict[str, Json], problems: list[str]) -> tuple[Manifest, ...]:
    """Build the manifests from parsed JSON; they may be used only if `problems` stays empty."""
    top = Fields(values, "", problems)
    model = _model(top)
    manifests = tuple(_target(model, item) for item in top.objects("targets", 64))
    if not manifests:
        top.wrong("targets", "must hold at least one")
    each_once(top, "targets", (manifest.target for manifest in manifests))
    paths = [library.path for manifest in manifests for library in manifest.libraries]
    each_once(top, "targets", paths)
    if not problems:
        # Relations between fields: only worth telling once each field is right by itself.
        check_model(model, problems)
        for i, manifest in enumerate(manifests):
            check_target(manifest, f"targets[{i}].", problems)
    return manifests


def _model(top: Fields) -> Model:
    model, chat = top.object("model"), top.object("chat")
    return Model(
        name=top.text("name"),
        version=top.text("version"),
        architecture=top.text("architecture"),
        activation_dtype=top.choice("activation_dtype", ("float32", "bfloat16")),
        vocab=model.integer("vocab", 1),
        max_positions=model.integer("max_positions", 1),
        tensors=tuple(_tensor(item) for item in top.objects("tensors", MAX_ITEMS)),
        ignored=top.texts("ignored", 1024),
        eos_token_ids=chat.integers("eos_token_ids", 1024, INT32_MAX),
        bos_token_id=chat.optional_integer("bos_token_id"),
        config=top.object("config").values if "config" in top.values else {},
    )


def _tensor(fields: Fields) -> TensorSpec:
    dtypes = fields.texts("dtypes", 16)
    if not dtypes:
        fields.wrong("dtypes", "must name at least one dtype")
    optional = "optional" in fields.values and fields.boolean("optional")
    # A scalar is a tensor of no dims.
    shape = () if fields.values.get("shape") == [] else read_shape(fields, "shape")
    return TensorSpec(fields.text("name"), shape, dtypes, optional)


def _target(model: Model, fields: Fields) -> Manifest:
    name = fields.text("target")
    sm = target_sm(name) if name else 0
    if sm is None:
        fields.wrong("target", f'must be "{CPU}" or like "sm_90:h200", is {shown(name)}')
    return Manifest(
        model=model,
        target=name,
        device_names=fields.texts("device_names", 64),
        libraries=_libraries(fields, sm),
        weights=tuple(read_weight(item) for item in fields.objects("weights", MAX_ITEMS)),
        cache=read_cache(fields.object("cache")),
        args=read_args(fields.object("args")),
        plans=tuple(read_plan(item) for item in fields.objects("plans", 4096)),
        counters=fields.integer("counters"),
        rules=read_rules(fields.object("rules")) if "rules" in fields.values else None,
    )


def _libraries(target: Fields, sm: int | None) -> tuple[Library, ...]:
    found = []
    for item in target.objects("libraries", 64):
        path, isa = item.text("path"), item.identifier("isa")
        plain = PurePosixPath(path)
        if plain.is_absolute() or ".." in plain.parts or not _LIBRARY.fullmatch(path):
            item.wrong("path", f"must be a .so inside the artifact, is {shown(path)}")
        if sm and isa and isa != f"sm_{sm}":
            item.wrong("isa", f"must be sm_{sm} for this target, is {shown(isa)}")
        found.append(Library(isa, path, item.boolean("measured")))
    if not found:
        target.wrong("libraries", "must hold at least one")
    each_once(target, "libraries", (library.isa for library in found))
    return tuple(found)
