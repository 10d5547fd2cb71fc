"""Owns the line of an answer, in the OpenAI batch format."""

import time
from collections.abc import Sequence
from typing import Any

from ..chat.front import Prepared
from ..generation import Output
from .lines import CHAT, Line
from .logprobs import TextOf, chat_logprobs, completion_logprobs

Answer = dict[str, Any]


def answer_id(number: int) -> str:
    """Return the id of the answer to line `number`: what a continued run knows it by."""
    return f"batch_req_{number}"


def unread(line: Line) -> Answer:
    """Return the answer to a line that is no request."""
    error = {"code": "invalid_request", "message": line.problem}
    return _answer(line, None) | {"error": error}


def refused(line: Line, status: int, message: str) -> Answer:
    """Return the answer to a request that could not be served."""
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    error = {"message": message, "type": kind, "param": None, "code": status}
    return _answer(line, _response(line, status, {"error": error}))


def served(
    line: Line,
    model: str,
    outputs: Sequence[Output],
    tells_ids: bool,
    text_of: TextOf,
    chat: Prepared | None = None,
) -> Answer:
    """Return the answer with all choices of a request; `text_of` tells a token's text."""
    is_chat = line.url == CHAT
    choices = [_choice(i, output, chat, tells_ids) for i, output in enumerate(outputs)]
    for choice, output in zip(choices, outputs, strict=True):
        if output.logprobs is not None:
            told = chat_logprobs if is_chat else completion_logprobs
            choice["logprobs"] = told(output.logprobs, text_of)
    body = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{line.number}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": _usage(outputs),
    }
    return _answer(line, _response(line, 200, body))


def _choice(index: int, output: Output, chat: Prepared | None, tells_ids: bool) -> Answer:
    text, reason = output.text or "", output.finish_reason
    said: Answer = {"text": text}
    if chat is not None:
        parser = chat.parser()
        parser.push(text)
        parser.finish()
        said, reason = {"message": parser.message()}, parser.finish_reason(reason)
    choice = {
        "index": index,
        **said,
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": output.stop_reason,
    }
    # Without a tokenizer ids are all there is.
    return choice | ({"token_ids": output.token_ids} if tells_ids or output.text is None else {})


def _usage(outputs: Sequence[Output]) -> Answer:
    # The choices of a prompt share it; it is counted once.
    prompt = sum(len(output.prompt_ids) for output in outputs if output.index == 0)
    generated = sum(len(output.token_ids) for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {
            "cached_tokens": sum(o.cached_tokens for o in outputs if o.index == 0)
        },
    }


def _response(line: Line, status: int, body: Answer) -> Answer:
    return {"status_code": status, "request_id": f"req_{line.number}", "body": body}


def _answer(line: Line, response: Answer | None) -> Answer:
    return {
        "id": answer_id(line.number),
        "custom_id": line.custom_id,
        "response": response,
        "error": None,
    }
