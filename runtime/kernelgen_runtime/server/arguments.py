"""Owns reading the command line of `serve`: spellings, dotted JSON, a YAML file, unknown names."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import KernelgenRuntimeError, shown
from .known_flags import UNSUPPORTED

MAX_CONFIG_BYTES = 1 << 20


class ArgumentsError(KernelgenRuntimeError):
    """The command line or the file of options cannot be meant."""


def expand(argv: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return `argv` as argparse reads it. `known` are the names of options, without dashes.

    Underscores become dashes, `--name.key value` becomes part of the JSON of `--name`, what
    `--config FILE` says comes first. Raises ArgumentsError for a name that nobody knows (with the
    nearest one) and for one that has no effect in this build.
    """
    plain = _dotted([_dashed(word) for word in argv])
    path = _config_path(plain)
    if path is not None:
        given, positional = _from_yaml(path, known)
        # What follows on the command line wins; a model there takes the place of the file's.
        has_model = bool(plain) and not plain[0].startswith("-")
        plain = [*plain[:1], *given, *plain[1:]] if has_model else [*positional, *given, *plain]
    return _checked(plain, known)


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    head, dot, key = name.partition(".")
    return head.replace("_", "-") + dot + key + equals + value


def _dotted(words: Sequence[str]) -> list[str]:
    """Gather `--name.a.b value` into `--name '{"a": {"b": value}}'`."""
    rest: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        head, dot, path = name.partition(".")
        at += 1
        if not (word.startswith("--") and dot):
            rest.append(word)
            continue
        if not equals:
            if at == len(words):
                raise ArgumentsError(f"{shown(word)}: needs a value")
            value, at = words[at], at + 1
        place = found.setdefault(head, {})
        *parents, last = path.split(".")
        for part in parents:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ArgumentsError(f"{shown(word)}: {shown(part)} has a value already")
        place[last] = _value(value)
    return rest + [word for head, value in found.items() for word in (head, json.dumps(value))]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _config_path(words: Sequence[str]) -> Path | None:
    for at, word in enumerate(words):
        if word == "--config" and at + 1 < len(words):
            return Path(words[at + 1])
        if word.startswith("--config="):
            return Path(word.partition("=")[2])
    return None


def _from_yaml(path: Path, known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options that a file gives, and its model where it names one."""
    import yaml

    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ArgumentsError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentsError(f"{path}: cannot read it ({error})") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ArgumentsError(f"{path}: not YAML ({shown(str(error), 200)})") from None
    if values is None:
        return [], []
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ArgumentsError(f"{path}: must map names of options to values")
    names = [key.value for key, _ in root.value]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ArgumentsError(f"{path}: {shown(twice[0])} is there twice")
    if "config" in values:
        raise ArgumentsError(f"{path}: config: a file of options cannot name another")
    model = values.pop("model", None)
    words: list[str] = []
    for key, value in values.items():
        words += _option(key.replace("_", "-"), value, known)
    return words, [] if model is None else [str(model)]


def _option(name: str, value: Any, known: Sequence[str]) -> list[str]:
    if name in UNSUPPORTED:
        return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}"]
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"] if f"no-{name}" in known else []
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}={value}"]


def _checked(words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the words that argparse knows; those that ask for nothing are left out."""
    left: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--" or not word.startswith("--"):
            left.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if name in known:
            left.append(word)
            continue
        if name not in UNSUPPORTED:
            near = difflib.get_close_matches(name, [*known, *UNSUPPORTED], 1, 0.5)
            hint = f"; did you mean --{near[0]}?" if near else "; see --help"
            raise ArgumentsError(f"--{name[:80]}: there is no such option{hint}")
        if not equals and at < len(words) and not words[at].startswith("-"):
            value, at = words[at], at + 1
        unsupported = UNSUPPORTED[name]
        if (value or "true").lower() not in unsupported.harmless:
            said = f" {shown(value)}" if value else ""
            raise ArgumentsError(
                f"--{name}{said}: not supported by this build: {unsupported.reason}"
            )
    return left
