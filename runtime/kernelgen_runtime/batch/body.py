"""Owns what the body of a request asks: prompts and sampling parameters in the runtime's words."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ..artifact.bounded_json import Json
from ..chat.front import ChatFront, Prepared
from ..chat.messages import read_messages
from ..chat.parameters import sampling_params
from ..chat.wish import completion_structured
from ..errors import RequestError, TextError, shown
from ..llm import LLM
from ..sample.params import SamplingParams
from ..schedule.request import check_rank, check_salt
from .lines import CHAT, COMPLETIONS

MAX_PROMPTS = 2048
_PARAMETERS = frozenset(field.name for field in fields(SamplingParams))

# What would change the answer and cannot be done, with the values that ask for nothing.
_UNABLE: dict[str, tuple[Json, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "echo": (False,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "logprobs": (False,),
    "logit_bias": ({},),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
}


@dataclass(frozen=True)
class Wanted:
    """Prompts of one request, as token ids, and how each is answered; `chat` of a conversation."""

    prompts: tuple[Sequence[int], ...]
    params: SamplingParams
    priority: int
    cache_salt: str | None
    tells_ids: bool
    chat: Prepared | None = None


def wanted(llm: LLM, front: ChatFront | None, url: str, body: dict[str, Json]) -> Wanted:
    """Return what `body` asks of the end point `url`. Raises RequestError, TextError.

    `front` is needed for chats: None where there is no tokenizer.
    """
    given: dict[str, Json] = {name: value for name, value in body.items() if value is not None}
    for name, harmless in _UNABLE.items():
        if name in given and name not in _PARAMETERS and given[name] not in harmless:
            raise RequestError(f"{name}: cannot be asked of this runtime, is {shown(given[name])}")
    chat = None
    if url == CHAT:
        if front is None:
            read_messages(given.get("messages"))
            raise TextError(f"{llm.folder}: no chat template; use {COMPLETIONS} with token ids")
        chat = front.prepare(given)
        prompts: tuple[Sequence[int], ...] = (chat.prompt_ids,)
        structured = chat.structured
    else:
        if given.get("tools"):
            raise RequestError(f"tools: cannot be asked of {COMPLETIONS}")
        prompts, structured = _completions(llm, given), completion_structured(given)
    priority, salt = given.get("priority", 0), given.get("cache_salt")
    return Wanted(
        prompts,
        sampling_params(llm.defaults, given, url == CHAT, structured),
        check_rank(priority),  # type: ignore[arg-type]
        check_salt(salt),  # type: ignore[arg-type]
        given.get("return_token_ids") is True,
        chat,
    )


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
