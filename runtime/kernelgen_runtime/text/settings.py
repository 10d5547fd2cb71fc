"""Owns what the checkpoint's JSON files say about generating text: end ids, defaults, template."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifact.bounded_json import Json, read_json
from ..errors import TextError

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

MAX_CONFIG_BYTES = 64 << 20
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


@dataclass(frozen=True)
class GenerationDefaults:
    """What `generation_config.json` asks for; `eos_token_ids` None where it is silent."""

    eos_token_ids: tuple[int, ...] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """Read `generation_config.json` of `folder`; all defaults where there is none.

    Without `do_sample` a checkpoint means greedy, whatever temperature it mentions.
    """
    values = _read(folder / "generation_config.json")
    eos = values.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [eos]
    found = tuple(i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0)
    if values.get("do_sample") is not True:
        return GenerationDefaults(found or None)
    return GenerationDefaults(
        found or None,
        temperature=_number(values, "temperature", 1.0, 0.0, 100.0),
        top_k=int(_number(values, "top_k", 0, 0, 2**31 - 1)),
        top_p=_number(values, "top_p", 1.0, 1e-6, 1.0),
    )


def read_chat_template(folder: Path) -> "ChatTemplate | None":
    """Return the chat template of `folder`, None where it has none. Raises TextError."""
    config = _read(folder / "tokenizer_config.json")
    source, where = _template_source(folder, config)
    if source is None:
        return None
    from .chat_template import ChatTemplate

    special = {name: text for name in _SPECIAL if (text := _token_text(config.get(name)))}
    return ChatTemplate(source, special, str(where))


def _template_source(folder: Path, config: dict[str, Json]) -> tuple[str | None, Path]:
    path = folder / "chat_template.jinja"
    if path.is_file():
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise TextError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
        try:
            return path.read_text(encoding="utf-8"), path
        except (OSError, UnicodeDecodeError) as error:
            raise TextError(f"{path}: cannot read it ({error})") from None
    alone = folder / "chat_template.json"
    for path, values in ((alone, _read(alone)), (folder / "tokenizer_config.json", config)):
        value = values.get("chat_template")
        if isinstance(value, list):  # several, by name
            named = [v for v in value if isinstance(v, dict) and v.get("name") == "default"]
            value = named[0].get("template") if named else None
        if isinstance(value, str):
            return value, path
    return None, folder


def _read(path: Path) -> dict[str, Json]:
    return read_json(path, MAX_CONFIG_BYTES, TextError) if path.is_file() else {}


def _number(values: dict[str, Json], key: str, default: float, low: float, high: float) -> float:
    value = values.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise TextError(f"generation_config.json: {key} must be a number from {low} to {high}")
    return float(value)


def _token_text(value: Json) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None
