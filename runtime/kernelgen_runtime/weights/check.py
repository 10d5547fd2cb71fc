"""Owns comparing a checkpoint with what the model needs: every difference, told together."""

from collections.abc import Mapping

from ..artifact.manifest import Model
from ..errors import WeightsError, listing, shown


def check_tensors(
    entries: Mapping[str, tuple[str, tuple[int, ...]]], model: Model, where: str
) -> None:
    """Raise WeightsError naming each tensor that is missing, extra, mis-shaped or mis-typed."""
    problems = []
    for spec in model.tensors:
        if spec.name not in entries:
            if not spec.optional:
                problems.append(f"{shown(spec.name)}: missing")
            continue
        dtype, shape = entries[spec.name]
        if shape != spec.shape:
            problems.append(f"{shown(spec.name)}: shape {list(shape)}, must be {list(spec.shape)}")
        if dtype not in spec.dtypes:
            allowed = " or ".join(spec.dtypes)
            problems.append(f"{shown(spec.name)}: dtype {dtype}, must be {allowed}")
    known = {spec.name for spec in model.tensors}
    for name in entries:
        if name not in known and not model.ignored_pattern.fullmatch(name):
            problems.append(f"{shown(name)}: the model has no such tensor")
    if problems:
        title = f"{where}: not the weights {model.name} was built for"
        raise WeightsError(listing(title, problems))
