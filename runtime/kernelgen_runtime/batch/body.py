"""Owns what the body of a request asks: prompts and sampling parameters in the runtime's words."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..artifact.bounded_json import Json
from ..errors import RequestError, shown
from ..llm import LLM
from ..sample.params import SamplingParams
from ..schedule.request import check_rank, check_salt
from .lines import CHAT

MAX_PROMPTS = 2048
_PARAMETERS = frozenset(field.name for field in fields(SamplingParams))
_ROLES = ("system", "developer", "user", "assistant", "tool")

# What would change the answer and cannot be done, with the values that ask for nothing.
_UNABLE: dict[str, tuple[Json, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "logprobs": (False,),
    "logit_bias": ({},),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "chat_template": (),
    "continue_final_message": (False,),
}


@dataclass(frozen=True)
class Wanted:
    """Prompts of one request, as token ids, and how each is answered."""

    prompts: tuple[Sequence[int], ...]
    params: SamplingParams
    priority: int
    cache_salt: str | None
    tells_ids: bool


def wanted(llm: LLM, url: str, body: dict[str, Json]) -> Wanted:
    """Return what `body` asks of the end point `url`. Raises RequestError, TextError."""
    given: dict[str, Json] = {name: value for name, value in body.items() if value is not None}
    for name, harmless in _UNABLE.items():
        if name in given and name not in _PARAMETERS and given[name] not in harmless:
            raise RequestError(f"{name}: cannot be asked of this runtime, is {shown(given[name])}")
    prompts = _chat(llm, given) if url == CHAT else _completions(llm, given)
    priority, salt = given.get("priority", 0), given.get("cache_salt")
    return Wanted(
        prompts,
        _params(llm, given, url == CHAT),
        check_rank(priority),  # type: ignore[arg-type]
        check_salt(salt),  # type: ignore[arg-type]
        given.get("return_token_ids") is True,
    )


def _params(llm: LLM, given: dict[str, Json], is_chat: bool) -> SamplingParams:
    """Return the parameters: those given, then the checkpoint's own, then the defaults."""
    defaults = llm.defaults
    params = SamplingParams(
        max_tokens=None if is_chat else 16,
        temperature=defaults.temperature,
        top_k=defaults.top_k,
        top_p=defaults.top_p,
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


def _chat(llm: LLM, given: dict[str, Json]) -> tuple[Sequence[int], ...]:
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(f"messages: must be a list of messages, is {shown(messages)}")
    return (llm.chat_ids([_message(i, message) for i, message in enumerate(messages)]),)


def _message(at: int, message: Json) -> dict[str, Json]:
    """Return a message whose content is one text."""
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        roles = ", ".join(_ROLES)
        raise RequestError(f"messages[{at}].role: must be one of {roles}, is {shown(role)}")
    content = message.get("content")
    if isinstance(content, list):
        parts = [p.get("text") if isinstance(p, dict) and p.get("type") == "text" else None
                 for p in content]  # fmt: skip
        if not all(isinstance(part, str) for part in parts):
            raise RequestError(f"messages[{at}].content: only parts of type text can be read")
        content = "".join(map(str, parts))
    if not isinstance(content, str):
        raise RequestError(f"messages[{at}].content: must be text, is {shown(content)}")
    return message | {"content": content}


def _completions(llm: LLM, given: dict[str, Json]) -> tuple[Sequence[int], ...]:
    """Return the ids of a text, of ids, or of a list of either."""
    prompt = given.get("prompt")
    several = isinstance(prompt, list) and all(isinstance(one, str | list) for one in prompt)
    prompts = prompt if isinstance(prompt, list) and several else [prompt]
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise RequestError(f"prompt: must be 1 to {MAX_PROMPTS} prompts, are {len(prompts)}")
    found: list[Sequence[int]] = []
    for one in prompts:
        if isinstance(one, str):
            found.append(llm.tokenizer.encode(one, add_special_tokens=True))
        elif isinstance(one, list):
            found.append(one)  # type: ignore[arg-type]  # ids are checked with the request
        else:
            raise RequestError(f"prompt: must be text or token ids, is {shown(one)}")
    return tuple(found)
