"""Owns what a request asks, in the runtime's words: prompts, parameters, and how it is answered."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..artifact.bounded_json import Json
from ..chat.answer import AnswerParser
from ..chat.front import ChatFront, Prepared
from ..chat.parameters import sampling_params
from ..chat.wish import completion_structured
from ..errors import RequestError, TextError, shown
from ..sample.demands import with_bad_word_ids
from ..sample.params import SamplingParams
from ..schedule.request import check_rank, check_salt
from ..text.settings import GenerationDefaults
from ..text.tokenizer import TextTokenizer
from .faults import FieldError
from .fields import MAX_PROMPTS

Body = dict[str, Json]

# What would change the answer and cannot be done, with the values that ask for nothing.
_UNABLE: dict[str, tuple[Json, ...]] = {
    "suffix": ("",),
    "use_beam_search": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
}


@dataclass(frozen=True)
class Prompt:
    """`text` is what was given, None where ids were."""

    ids: Sequence[int]
    text: str | None = None


@dataclass(frozen=True)
class Told:
    """What an answer holds beside text."""

    token_ids: bool = False
    tokens_as_ids: bool = False
    usage_in_stream: bool = False
    usage_in_chunks: bool = False


@dataclass(frozen=True)
class Ask:
    """One request: every prompt is answered `params.n` times.

    `drops_output`: what was asked is the prompt's own log-probabilities; nothing is generated that
    is told. `prepared` is set for a chat.
    """

    is_chat: bool
    model: str
    prompts: tuple[Prompt, ...]
    params: SamplingParams
    streams: bool = False
    echo: bool = False
    drops_output: bool = False
    priority: int = 0
    cache_salt: str | None = None
    request_id: str | None = None
    told: Told = field(default_factory=Told)
    prepared: Prepared | None = None

    def parser(self) -> AnswerParser | None:
        """Return a new reader of a chat's answer; None for a completion."""
        return None if self.prepared is None else self.prepared.parser()


@dataclass(frozen=True)
class Reading:
    """What bodies are read with. `front` and `tokenizer` are None where there is no text."""

    names: tuple[str, ...]
    defaults: GenerationDefaults
    max_model_len: int
    max_logprobs: int
    tokenizer: TextTokenizer | None = None
    front: ChatFront | None = None
    told: Told = field(default_factory=Told)
    more_ends: tuple[int, ...] = ()
    """ids that end a text here, though the engine does not know them as ends"""

    def choices(self, body: Body) -> int:
        """Return how many choices a checked body asks for; cheap. Raises FieldError."""
        prompt = body.get("prompt")
        several = isinstance(prompt, list) and isinstance(prompt[0], str | list)
        prompts = len(prompt) if several else 1  # type: ignore[arg-type]
        n = body.get("n")
        choices = prompts * (n if isinstance(n, int) else 1)
        if choices > MAX_PROMPTS:
            raise FieldError(
                f"prompt: prompts times n must be at most {MAX_PROMPTS}, are {choices}", "prompt"
            )
        return choices

    def ask(self, body: Body, is_chat: bool) -> Ask:
        """Return what a checked body asks. Raises RequestError, TextError.

        Renders templates and tokenises, so it may take long; may be called in any thread.
        """
        body = {name: value for name, value in body.items() if value is not None}
        self._refuse(body)
        if is_chat:
            if self.front is None:
                raise TextError("a chat needs a tokenizer and a template; use /v1/completions")
            prepared = self.front.prepare(body)
            prompts = [Prompt(prepared.prompt_ids)]
            structured = prepared.structured
        else:
            prepared, prompts = None, self._prompts(body)
            structured = completion_structured(body)
        params = sampling_params(self.defaults, _sampling(body), is_chat, structured)
        drops = body.get("max_tokens", body.get("max_completion_tokens")) == 0
        echo = body.get("echo") is True
        if echo and params.logprobs is not None:
            params = replace(params, prompt_logprobs=params.logprobs)
        if params.bad_words and self.tokenizer is not None:
            params = with_bad_word_ids(params, self.tokenizer)
        if self.more_ends and not params.ignore_eos:
            params = replace(params, stop_token_ids=(*params.stop_token_ids, *self.more_ends))
        streams = body.get("stream") is True
        if streams and "prompt_logprobs" in body:
            raise FieldError("prompt_logprobs: a stream does not tell them", "prompt_logprobs")
        wanted = max(params.logprobs or 0, params.prompt_logprobs or 0)
        if wanted > self.max_logprobs:
            raise FieldError(f"logprobs: at most {self.max_logprobs} here, is {wanted}", "logprobs")
        rank, salt, name = body.get("priority", 0), body.get("cache_salt"), body.get("request_id")
        if isinstance(name, str) and not is_request_id(name):
            raise FieldError("request_id: up to 128 printable ASCII characters", "request_id")
        return Ask(
            is_chat=is_chat,
            model=str(body.get("model") or self.names[0]),
            prompts=tuple(self._cut(body, params, prompt) for prompt in prompts),
            params=params,
            streams=streams,
            echo=echo,
            drops_output=drops,
            priority=check_rank(rank),  # type: ignore[arg-type]
            cache_salt=check_salt(salt),  # type: ignore[arg-type]
            request_id=name if isinstance(name, str) else None,
            told=self._told(body),
            prepared=prepared,
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`. Raises TextError."""
        if self.tokenizer is None:
            raise TextError("there is no tokenizer here; give the prompt as token ids")
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _refuse(self, body: Body) -> None:
        for name, harmless in _UNABLE.items():
            if name in body and body[name] not in harmless:
                raise FieldError(f"{name}: cannot be asked here, is {shown(body[name])}", name)
        if body.get("best_of", body.get("n", 1)) != body.get("n", 1):
            raise FieldError("best_of: must be n, or left out", "best_of")

    def _prompts(self, body: Body) -> list[Prompt]:
        prompt = body["prompt"]
        several = isinstance(prompt, list) and isinstance(prompt[0], str | list)
        adds = body.get("add_special_tokens", True) is not False
        found = []
        for one in prompt if several else [prompt]:  # type: ignore[union-attr]
            if isinstance(one, str):
                found.append(Prompt(self.encode(one, adds), one))
            elif isinstance(one, list) and all(type(i) is int for i in one):
                found.append(Prompt(one))  # type: ignore[arg-type]
            else:
                raise FieldError("prompt: texts or lists of ids, not mixed with ids", "prompt")
        return found

    def _cut(self, body: Body, params: SamplingParams, prompt: Prompt) -> Prompt:
        most = body.get("truncate_prompt_tokens")
        if not isinstance(most, int):
            return prompt
        if most == 0:
            raise FieldError("truncate_prompt_tokens: must not be 0", "truncate_prompt_tokens")
        most = most if most > 0 else max(1, self.max_model_len - (params.max_tokens or 1))
        return prompt if len(prompt.ids) <= most else Prompt(prompt.ids[-most:])

    def _told(self, body: Body) -> Told:
        options = body.get("stream_options")
        options = options if isinstance(options, dict) else {}
        always = self.told
        as_ids = body.get("return_tokens_as_token_ids")
        chunks = options.get("continuous_usage_stats") is True
        return Told(
            token_ids=always.token_ids or body.get("return_token_ids") is True,
            tokens_as_ids=always.tokens_as_ids if as_ids is None else as_ids is True,
            usage_in_stream=always.usage_in_stream or options.get("include_usage") is True,
            usage_in_chunks=always.usage_in_chunks or chunks,
        )


def _sampling(body: Body) -> Body:
    """Return `body` with the spellings of other servers: top_k -1 is off, 0 new tokens are 1."""
    changed: Body = {}
    if body.get("top_k") == -1:
        changed["top_k"] = 0
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) == 0:
            changed[name] = 1
    return body | changed


def is_request_id(text: str) -> bool:
    """Return whether `text` may be a request's id: it stands in logs."""
    return 0 < len(text) <= 128 and text.isascii() and text.isprintable() and " " not in text


def check_model(body: Body, names: Sequence[str]) -> None:
    """Raise UnknownModelError where a body names a model that is not here."""
    name = body.get("model")
    if name and name not in names:
        here = ", ".join(names)
        raise UnknownModelError(f"model {shown(name)} does not exist; here is {here}")


class UnknownModelError(RequestError):
    """The model that was asked for is not served."""
