"""Owns what the checkpoint's JSON files say about generating text: end ids, defaults, template."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifact.bounded_json import Json, read_json
from ..errors import TextError, shown

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

MAX_CONFIG_BYTES = 64 << 20
MAX_TEMPLATES = 16
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


@dataclass(frozen=True)
class GenerationDefaults:
    """What `generation_config.json` asks for; `eos_token_ids` None where it is silent."""

    eos_token_ids: tuple[int, ...] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None


CHECKPOINT, NEUTRAL = "auto", ("none", "vllm")


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """Read `generation_config.json` of `folder`; all defaults where there is none.

    Without `do_sample` a checkpoint means greedy, whatever temperature it mentions.
    """
    return _defaults(_read(folder / "generation_config.json"))


def resolve_defaults(
    folder: Path | None, source: str = CHECKPOINT, override: Mapping[str, Json] | None = None
) -> GenerationDefaults:
    """Return the defaults of a server. Raises TextError.

    `source` is "auto" (the checkpoint's), "none" (temperature 1 and nothing else; also called
    "vllm") or a folder. `override` has entries of `generation_config.json`.
    """
    if source in NEUTRAL:
        ends = read_generation_defaults(folder).eos_token_ids if folder else None
        values: dict[str, Json] = {"do_sample": True, "temperature": 1.0, "eos_token_id": None}
        if ends is not None:  # an end is no matter of taste
            values["eos_token_id"] = list(ends)
    elif source == CHECKPOINT:
        values = _read(folder / "generation_config.json") if folder else {}
    else:
        path = Path(source) / "generation_config.json"
        if not path.is_file():
            raise TextError(f"{path}: there is no such file; give auto, none or a folder with it")
        values = _read(path)
    given = dict(override or {})
    if unknown := given.keys() - _KNOWN:
        allowed = ", ".join(sorted(_KNOWN))
        raise TextError(f"generation config: must be of {allowed}, has {shown(min(unknown))}")
    if given.keys() & {"temperature", "top_k", "top_p", "min_p"}:
        given = {"do_sample": True, **given}  # who sets one of them means it
    return _defaults({**values, **given})


_KNOWN = frozenset(
    ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
) | {"max_new_tokens", "eos_token_id"}


def _defaults(values: dict[str, Json]) -> GenerationDefaults:
    eos = values.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [eos]
    found = tuple(i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0)
    longest = int(_number(values, "max_new_tokens", 0, 0, 2**31 - 1)) or None
    penalty = _number(values, "repetition_penalty", 1.0, 0.01, 100.0)
    if values.get("do_sample") is not True:
        return GenerationDefaults(found or None, repetition_penalty=penalty, max_new_tokens=longest)
    return GenerationDefaults(
        found or None,
        temperature=_number(values, "temperature", 1.0, 0.0, 100.0),
        top_k=int(_number(values, "top_k", 0, 0, 2**31 - 1)),
        top_p=_number(values, "top_p", 1.0, 1e-6, 1.0),
        min_p=_number(values, "min_p", 0.0, 0.0, 1.0),
        repetition_penalty=penalty,
        max_new_tokens=longest,
    )


def read_chat_template(folder: Path) -> "ChatTemplate | None":
    """Return the chat template of `folder`, None where it has none. Raises TextError."""
    return read_chat_templates(folder).get("default")


def read_chat_templates(folder: Path, given: str | None = None) -> dict[str, "ChatTemplate"]:
    """Return the chat templates of `folder` by name: "default", and others if there are several.

    `given` (a file, or the text of a template) takes the place of all. Raises TextError.
    """
    if given is not None:
        return {"default": chat_template_of(folder, *_given_source(given))}
    config = _read(folder / "tokenizer_config.json")
    sources, where = _template_sources(folder, config)
    made = {name: chat_template_of(folder, text, str(where)) for name, text in sources.items()}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))[:MAX_TEMPLATES]:
        made.setdefault(path.stem, chat_template_of(folder, _template_file(path), str(path)))
    return made


def chat_template_of(folder: Path, source: str, where: str) -> "ChatTemplate":
    """Return a template with the special tokens of `folder`. Raises TextError."""
    from .chat_template import ChatTemplate

    config = _read(folder / "tokenizer_config.json")
    special = {name: text for name in _SPECIAL if (text := _token_text(config.get(name)))}
    return ChatTemplate(source, special, where)


def _given_source(given: str) -> tuple[str, str]:
    """Return the text of a template and where it is from. What has braces is the text itself."""
    if "{{" in given or "{%" in given:
        return given, "chat template"
    path = Path(given)
    if not path.is_file():
        raise TextError(f"{shown(given)}: no such file, and no template either")
    return _template_file(path), str(path)


def _template_file(path: Path) -> str:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise TextError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(f"{path}: cannot read it ({error})") from None


def _template_sources(folder: Path, config: dict[str, Json]) -> tuple[dict[str, str], Path]:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return {"default": _template_file(path)}, path
    alone = folder / "chat_template.json"
    for path, values in ((alone, _read(alone)), (folder / "tokenizer_config.json", config)):
        value = values.get("chat_template")
        if isinstance(value, str):
            return {"default": value}, path
        if isinstance(value, list):  # several, by name
            pairs = [(v.get("name"), v.get("template")) for v in value if isinstance(v, dict)]
            named = {n: t for n, t in pairs if isinstance(n, str) and isinstance(t, str)}
            if named:
                return dict(list(named.items())[:MAX_TEMPLATES]), path
    return {}, folder


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
