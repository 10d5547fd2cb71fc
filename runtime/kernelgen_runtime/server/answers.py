"""Owns the bodies of whole answers: completions and chats, their logprobs and usage."""

from collections.abc import Callable, Sequence
from typing import Any

from ..batch.logprobs import LEAST, TextOf, chat_logprobs, completion_logprobs
from ..sample.reference import Likelihood
from ..text.tokenizer import TextTokenizer
from .choice import Choice
from .job import Job

Body = dict[str, Any]


def text_of(tokenizer: TextTokenizer | None, as_ids: bool) -> TextOf:
    """Return how the text of one token is told; its number where that was asked."""
    if tokenizer is None or as_ids:
        return lambda token: f"token_id:{token}"
    return lambda token: tokenizer.decode([token], skip_special_tokens=False)


def whole(job: Job, tokenizer: TextTokenizer | None, cached: bool) -> Body:
    """Return the answer to a request that has ended. `cached`: its usage tells cached tokens."""
    ask = job.ask
    spell = text_of(tokenizer, ask.told.tokens_as_ids)
    one: Callable[[Job, Choice, TextOf], Body] = _chat if ask.is_chat else _completion
    body: Body = {
        "id": job.id,
        "object": "chat.completion" if ask.is_chat else "text_completion",
        "created": job.created,
        "model": ask.model,
        "choices": [one(job, choice, spell) for choice in job.choices],
        "usage": usage(job, cached),
    }
    if ask.is_chat:
        if "prompt_logprobs" in (told := _prompt_logprobs(job, job.choices[0], spell)):
            body |= told
        if ask.told.token_ids:
            body["prompt_token_ids"] = list(ask.prompts[0].ids)
    return body


def usage(job: Job, cached: bool) -> Body:
    """Return the tokens that a request took so far."""
    prompt = job.prompt_tokens
    generated = 0 if job.ask.drops_output else sum(len(c.ids) for c in job.choices)
    told: Body = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }
    if cached:
        found: dict[int, int] = {}
        for choice in job.choices:
            if choice.first is not None:
                found.setdefault(choice.prompt, choice.first.cached_tokens)
        told["prompt_tokens_details"] = {"cached_tokens": sum(found.values())}
    if job.ask.is_chat:
        reasoning = sum(c.parser.reasoning_tokens for c in job.choices if c.parser is not None)
        told["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return told


def completion_told(told: Sequence[Likelihood], spell: TextOf, offset: int = 0) -> Body:
    """Return logprobs of a completion; `offset` is the length of the text before them."""
    lists = completion_logprobs(told, spell)
    lists["text_offset"] = [offset + at for at in lists["text_offset"]]
    return lists


def prompt_told(job: Job, choice: Choice, spell: TextOf) -> Body:
    """Return logprobs of a prompt's tokens, as `echo` has them; the first one has none."""
    ids = list(job.ask.prompts[choice.prompt].ids)
    told = (choice.first.prompt_logprobs if choice.first else None) or []
    rest = completion_logprobs(told, spell)
    first = spell(ids[0])
    return {
        "tokens": [first, *rest["tokens"]],
        "token_logprobs": [None, *rest["token_logprobs"]],
        "top_logprobs": [None, *rest["top_logprobs"]],
        "text_offset": [0, *(len(first) + at for at in rest["text_offset"])],
    }


def ending(choice: Choice, reason: str | None = None) -> Body:
    """Return how a choice ended, as every answer says it."""
    return {
        "finish_reason": reason or choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }


def extras(job: Job, choice: Choice) -> Body:
    """Return ids and masks, where they were asked."""
    told: Body = {}
    if job.ask.told.token_ids or not choice.has_text:
        told["token_ids"] = [] if job.ask.drops_output else choice.ids
    if job.ask.params.return_sampling_mask:
        told["sampling_mask"] = choice.masks
    return told


def _chat(job: Job, choice: Choice, spell: TextOf) -> Body:
    assert choice.parser is not None
    choice.take()
    message = choice.parser.message()
    logprobs = None
    if job.ask.params.tells_logprobs:
        logprobs = chat_logprobs(choice.logprobs, spell)
    reason = choice.parser.finish_reason(choice.finish_reason or "")
    return {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        **ending(choice, reason),
        **extras(job, choice),
    }


def _completion(job: Job, choice: Choice, spell: TextOf) -> Body:
    ask = job.ask
    text = "" if ask.drops_output else choice.text
    told = [] if ask.drops_output else choice.logprobs
    logprobs = completion_told(told, spell) if ask.params.tells_logprobs else None
    if ask.echo:
        before = job.echo_text(choice)
        text = before + text
        if ask.params.logprobs is not None:
            prompt = prompt_told(job, choice, spell)
            own = completion_told(told, spell, len(before))
            logprobs = {name: prompt[name] + own[name] for name in prompt}
    body = {
        "index": choice.index,
        "text": text,
        "logprobs": logprobs,
        **ending(choice),
        **extras(job, choice),
        **({} if ask.echo else _prompt_logprobs(job, choice, spell)),
    }
    if ask.told.token_ids:
        body["prompt_token_ids"] = list(ask.prompts[choice.prompt].ids)
    return body


def _prompt_logprobs(job: Job, choice: Choice, spell: TextOf) -> Body:
    """Return what `prompt_logprobs` asks: for each token, itself and the likeliest by id."""
    if job.ask.params.prompt_logprobs is None:
        return {}
    told = (choice.first.prompt_logprobs if choice.first else None) or []
    return {"prompt_logprobs": [None, *(_ranked(one, spell) for one in told)]}


def _ranked(one: Likelihood, spell: TextOf) -> Body:
    found = {
        str(token): {"logprob": max(value, LEAST), "rank": rank, "decoded_token": spell(token)}
        for rank, (token, value) in enumerate(one.likeliest, 1)
    }
    own = {
        "logprob": max(one.logprob, LEAST),
        "rank": one.rank,
        "decoded_token": spell(one.token),
    }
    return {str(one.token): own} | found
