"""Owns the sampling parameters of a body: what it gives, then the checkpoint's own, then ours."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ..artifact.bounded_json import Json
from ..errors import RequestError, shown
from ..sample.params import SamplingParams
from ..sample.structured import Structured
from ..text.settings import GenerationDefaults

_PARAMETERS = frozenset(field.name for field in fields(SamplingParams)) - {"structured"}
DEFAULT_COMPLETION_TOKENS = 16


def sampling_params(
    defaults: GenerationDefaults,
    body: Mapping[str, Json],
    is_chat: bool,
    structured: Structured | None = None,
) -> SamplingParams:
    """Return the parameters that `body` asks for. Raises RequestError.

    Without `max_tokens` a chat may go on as long as there is room, or as the checkpoint says.
    """
    given = {name: value for name, value in body.items() if value is not None}
    params = SamplingParams(
        max_tokens=defaults.max_new_tokens if is_chat else DEFAULT_COMPLETION_TOKENS,
        temperature=defaults.temperature,
        top_k=defaults.top_k,
        top_p=defaults.top_p,
        min_p=defaults.min_p,
        repetition_penalty=defaults.repetition_penalty,
        structured=structured,
    )
    values: dict[str, Any] = {k: _frozen(v) for k, v in given.items() if k in _PARAMETERS}
    if "max_completion_tokens" in given:
        values["max_tokens"] = given["max_completion_tokens"]
    if isinstance(values.get("stop"), str):
        values["stop"] = (values["stop"],)
    if is_chat:
        asked = values.pop("logprobs", False)
        if not isinstance(asked, bool):
            raise RequestError(f"logprobs: must be true or false, is {shown(asked)}")
        values["logprobs"] = given.get("top_logprobs", 0) if asked else None
    if isinstance(bias := values.get("logit_bias"), dict):
        values["logit_bias"] = {_id(key): value for key, value in bias.items()}
    return replace(params, **values)


def _id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 12):
        raise RequestError(f"logit_bias: keys must be token ids, one is {shown(key)}")
    return int(key)


def _frozen(value: Json) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
