"""Owns the fields of every request body, as JSON Schema: what is checked is what is published."""

from typing import Any

from ..sample import params as limits
from ..schedule.request import MAX_PRIORITY, MAX_SALT

MAX_PROMPTS = 4096
MAX_PROMPT_IDS = 1 << 20
MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOLS = 1024
MAX_TEXT = 16 << 20
Schema = dict[str, Any]


def _null_or(schema: Schema) -> Schema:
    parts = schema.get("anyOf", [schema])
    return {"anyOf": [*parts, {"type": "null"}]}


def _whole(low: int, high: int = limits.INT32_MAX) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _real(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _list(items: Schema, most: int, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _word(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


TEXT: Schema = {"type": "string", "maxLength": MAX_TEXT}
SHORT: Schema = {"type": "string", "minLength": 1, "maxLength": limits.MAX_STOP_LENGTH}
TOKEN = _whole(0)
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
IDS = _list(TOKEN, MAX_PROMPT_IDS, 1)

# What sampling reads; values of SamplingParams, with what the schema can say of their ranges.
SAMPLING: dict[str, Schema] = {
    "max_tokens": _whole(0),
    "temperature": _real(0.0, 1e6),
    "top_k": _whole(-1),
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "min_p": _real(0.0, 1.0),
    "seed": _whole(-(2**63), 2**63 - 1),
    "n": _whole(1, limits.MAX_CHOICES),
    "stop": {"anyOf": [SHORT, _list(SHORT, limits.MAX_STOPS)]},
    "stop_token_ids": _list(TOKEN, limits.MAX_STOP_IDS),
    "ignore_eos": FLAG,
    "include_stop_str_in_output": FLAG,
    "skip_special_tokens": FLAG,
    "min_tokens": _whole(0),
    "presence_penalty": _real(-2.0, 2.0),
    "frequency_penalty": _real(-2.0, 2.0),
    "repetition_penalty": _real(0.01, 100.0),
    "logit_bias": {
        "type": "object",
        "maxProperties": limits.MAX_BIAS,
        "additionalProperties": _real(-100.0, 100.0),
    },
    "allowed_token_ids": _list(TOKEN, MAX_PROMPT_IDS, 1),
    "bad_words": _list(SHORT, limits.MAX_BAD_WORDS),
    "logprob_token_ids": _list(TOKEN, limits.MAX_LOGPROBS, 1),
    "prompt_logprobs": _whole(0, limits.MAX_LOGPROBS),
    "watermarking": FLAG,
    "return_sampling_mask": FLAG,
}
SHARED: dict[str, Schema] = SAMPLING | {
    "model": {"type": "string", "maxLength": 512},
    "stream": FLAG,
    "stream_options": {
        "type": "object",
        "properties": {
            "include_usage": _null_or(FLAG),
            "continuous_usage_stats": _null_or(FLAG),
            "include_obfuscation": _null_or(FLAG),
        },
    },
    "user": TEXT,
    "priority": _whole(-MAX_PRIORITY, MAX_PRIORITY),
    "cache_salt": {"type": "string", "minLength": 1, "maxLength": MAX_SALT},
    "request_id": {"type": "string", "minLength": 1, "maxLength": 128},
    "truncate_prompt_tokens": _whole(-1),
    "add_special_tokens": FLAG,
    "return_token_ids": FLAG,
    "return_tokens_as_token_ids": FLAG,
    "spaces_between_special_tokens": FLAG,
    "response_format": OBJECT,
    "structured_outputs": OBJECT,
    "guided_json": {"anyOf": [TEXT, OBJECT]},
    "guided_regex": TEXT,
    "guided_choice": _list(TEXT, 4096, 1),
    "guided_grammar": TEXT,
    "metadata": OBJECT,
    "store": FLAG,
}
COMPLETION: dict[str, Schema] = SHARED | {
    "prompt": {
        "anyOf": [
            TEXT,
            _list({"anyOf": [TEXT, TOKEN, IDS]}, MAX_PROMPT_IDS, 1),
        ]
    },
    "logprobs": _whole(0, limits.MAX_LOGPROBS),
    "echo": FLAG,
    "suffix": TEXT,
    "best_of": _whole(1, limits.MAX_CHOICES),
}
_PART: Schema = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"type": "string", "maxLength": 64}, "text": TEXT},
}
_FUNCTION_CALL: Schema = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "arguments": {"anyOf": [TEXT, OBJECT, {"type": "null"}]},
    },
}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": _word("system", "developer", "user", "assistant", "tool"),
        "content": {"anyOf": [TEXT, _list(_PART, MAX_PARTS), {"type": "null"}]},
        "name": _null_or(TEXT),
        "tool_call_id": _null_or(TEXT),
        "reasoning_content": _null_or(TEXT),
        "reasoning": _null_or(TEXT),
        "tool_calls": _null_or(
            _list({"type": "object", "properties": {"function": _FUNCTION_CALL}}, MAX_TOOLS)
        ),
    },
}
_TOOL: Schema = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": _word("function"),
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 256},
                "description": _null_or(TEXT),
                "parameters": _null_or(OBJECT),
                "strict": _null_or(FLAG),
            },
        },
    },
}
CHAT: dict[str, Schema] = SHARED | {
    "messages": _list(_MESSAGE, MAX_MESSAGES, 1),
    "max_completion_tokens": _whole(0),
    "logprobs": FLAG,
    "top_logprobs": _whole(0, limits.MAX_LOGPROBS),
    "tools": _list(_TOOL, MAX_TOOLS),
    "tool_choice": {"anyOf": [_word("none", "auto", "required"), OBJECT]},
    "parallel_tool_calls": FLAG,
    "reasoning_effort": {"type": "string", "maxLength": 64},
    "include_reasoning": FLAG,
    "add_generation_prompt": FLAG,
    "continue_final_message": FLAG,
    "chat_template": TEXT,
    "chat_template_kwargs": OBJECT,
    "documents": _list(OBJECT, MAX_PARTS),
    "functions": _list(OBJECT, MAX_TOOLS),
    "function_call": {"anyOf": [TEXT, OBJECT]},
    "modalities": _list(TEXT, 8),
    "audio": OBJECT,
    "length_penalty": {"type": "number"},
}
TOKENIZE: dict[str, Schema] = {
    name: CHAT[name]
    for name in (
        *("model", "messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("chat_template", "chat_template_kwargs", "add_special_tokens"),
    )
} | {"prompt": TEXT, "return_token_strs": FLAG}
DETOKENIZE: dict[str, Schema] = {
    "model": SHARED["model"],
    "tokens": _list(TOKEN, MAX_PROMPT_IDS),
}


def body(fields: dict[str, Schema], *required: str) -> Schema:
    """Return the schema of a body. Every field but the required ones may be null."""
    properties = {
        name: schema if name in required else _null_or(schema) for name, schema in fields.items()
    }
    return {"type": "object", "properties": properties, "required": list(required)}


RENDER = CHAT | COMPLETION | {"logprobs": {"anyOf": [FLAG, COMPLETION["logprobs"]]}}
DERENDER: dict[str, Schema] = {"model": SHARED["model"], "token_ids": DETOKENIZE["tokens"]}
GENERATE: dict[str, Schema] = {
    "token_ids": IDS,
    "sampling_params": body(SAMPLING | {"logprobs": COMPLETION["logprobs"]}),
    **{name: SHARED[name] for name in ("model", "request_id", "priority", "cache_salt")},
}
BODIES: dict[str, Schema] = {
    "/v1/completions": body(COMPLETION, "prompt"),
    "/v1/chat/completions": body(CHAT, "messages"),
    "/tokenize": body(TOKENIZE),
    "/detokenize": body(DETOKENIZE, "tokens"),
    "/render": body(RENDER),
    "/derender": body(DERENDER, "token_ids"),
    "/inference/v1/generate": body(GENERATE, "token_ids"),
}
