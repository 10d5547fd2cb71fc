"""Owns telling that a checkpoint is another model than was built, where its tensors do not show it.

Two models may have the same shapes and differ in a rotation's base or a norm's epsilon: the text
would be wrong and nothing would say so.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..artifact.bounded_json import Json, read_json
from ..artifact.manifest import Model
from ..errors import WeightsError, listing, shown

MAX_BYTES = 1 << 20


def check_config(source: Path, model: Model) -> None:
    """Raise WeightsError naming each value of `config.json` that the build has read otherwise.

    `source` is the checkpoint's folder, or its one file. What only one of the two says is not
    compared: names come and go with versions of a format. Weights without a `config.json` beside
    them are refused where the build knows what it would have to say.
    """
    folder = source.parent if source.is_file() else source
    path = folder / "config.json"
    if not model.config:
        return
    if not path.is_file():
        raise WeightsError(
            f"{folder}: has no config.json, so nothing tells whether it holds {model.name}; "
            "copy the one of its checkpoint there"
        )
    found = read_json(path, MAX_BYTES, WeightsError)
    problems = list(_differences(model.config, found))
    if problems:
        title = f"{path}: not the model {model.name} was built for; build it from this folder"
        raise WeightsError(listing(title, problems))


def _differences(
    built: Mapping[str, Json], here: Mapping[str, Json], at: str = ""
) -> Iterator[str]:
    for name, value in built.items():
        other = here.get(name)
        if other is None or value is None:
            continue
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _differences(value, other, f"{at}{name}.")
        elif other != value:
            yield f"{at}{name}: {shown(other)}, built for {shown(value)}"
