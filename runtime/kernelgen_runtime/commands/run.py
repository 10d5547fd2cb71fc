"""Owns the `run` command: one prompt or a conversation, streamed, with figures at the end."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import tvm_ffi  # noqa: F401  what the library is opened with: an import, and timed as one

from ..artifact.open import open_artifact
from ..chat.formats.choose import choose_thinking, choose_tools
from ..chat.front import ChatFront
from ..chat.prompt import ChatOptions
from ..clock import process_start
from ..device.choose import Choice, choose
from ..errors import RequestError, shown
from ..generation import Output
from ..llm import LLM
from ..sample.params import SamplingParams
from ..text.settings import read_chat_templates
from .batch import SEQS_ON_CPU, SEQS_ON_GPU, check_batch, run_batch
from .figures import compared, figure_lines, figures
from .loading_bar import loading_bar
from .sampling_options import sampling_of

IMPORTS_DONE = time.perf_counter()


def run(options: argparse.Namespace) -> int:
    """Answer `options.prompt`, chat or run a batch; return the exit code."""
    check_batch(options)
    _check_told(options)
    _check_parsers(options)
    artifact = open_artifact(options.artifact)
    choice = choose(artifact.manifests, options.device)
    with loading_bar() as told:
        llm = LLM(
            artifact,
            options.weights,
            device=choice,
            max_num_seqs=options.max_num_seqs or _default_seqs(options, choice),
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
            kv_cache_memory_bytes=options.kv_cache_memory_bytes,
            gpu_memory_utilization=options.gpu_memory_utilization,
            threads=options.threads,
            graphs=not options.eager,
            chunk_tokens=options.long_prefill_token_threshold,
            scheduling_policy=options.scheduling_policy,
            async_scheduling=options.async_scheduling,
            enable_prefix_caching=options.enable_prefix_caching,
            prefix_cache_retention_interval=options.prefix_cache_retention_interval,
            told=told,
        )
    if options.chat_template is not None and llm.folder is not None:
        llm.chat_template = read_chat_templates(llm.folder, options.chat_template)["default"]
    if options.batch is not None:
        front = ChatFront.of(llm, _chat_options(options)) if llm.has_tokenizer else None
        return run_batch(llm, Path(options.batch), Path(options.output), front)
    params = sampling_of(options, llm.defaults)
    if options.interactive:
        return chat(llm, params, options.raw)
    output = answer(llm, prompt_ids(llm, options), params, silent=options.json)
    measured = figures(llm, output, process_start(), IMPORTS_DONE)
    library, device = llm.library, llm.device
    del llm  # the buffer that bandwidth is measured on must not come on top of the weights
    if (seconds := options.bandwidth_seconds) > 0:
        bandwidth = library.read_bandwidth(seconds) or device.read_bandwidth(seconds)
        measured = compared(measured, bandwidth)
    if options.json:
        shown_output = {
            "text": output.text,
            "token_ids": output.token_ids,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            **_told(output),
        }
        print(json.dumps(shown_output | measured))
    else:
        print("\n".join(["", *figure_lines(measured)]))
    return 0


def _check_told(options: argparse.Namespace) -> None:
    """Raise RequestError for log-probabilities that would be printed nowhere."""
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(options, name) is not None and not options.json:
            raise RequestError(f"--{name.replace('_', '-')}: is told with --json alone")


def _told(output: Output) -> dict[str, object]:
    """Return log-probabilities where they were asked."""
    asked = {"logprobs": output.logprobs, "prompt_logprobs": output.prompt_logprobs}
    return {
        name: [one and asdict(one) for one in told]
        for name, told in asked.items()
        if told is not None
    }


def _default_seqs(options: argparse.Namespace, choice: Choice) -> int:
    """Return how many requests run beside each other where nobody says."""
    if options.batch is None:
        return 1
    return min(SEQS_ON_GPU if choice.gpu else SEQS_ON_CPU, choice.manifest.args.max_rows)


def prompt_ids(llm: LLM, options: argparse.Namespace) -> list[int]:
    """Return the ids of the prompt, with the chat template unless --raw. Raises RequestError."""
    if options.prompt_ids is not None:
        try:
            return [int(word) for word in options.prompt_ids.split(",")]
        except ValueError:
            raise RequestError(
                f"--prompt-ids: must be whole numbers with commas, is {shown(options.prompt_ids)}"
            ) from None
    if llm.folder is None:
        # Made-up weights answer nonsense: bytes as ids give a prompt of the right length.
        return [byte % llm.manifest.vocab for byte in options.prompt.encode(errors="replace")]
    if options.raw or llm.chat_template is None:
        return llm.tokenizer.encode(options.prompt, add_special_tokens=True)
    return llm.chat_ids([{"role": "user", "content": options.prompt}])


def _check_parsers(options: argparse.Namespace) -> None:
    """Raise RequestError for a parser that there is not, before anything is loaded."""
    choose_tools(options.tool_call_parser, "", "")
    choose_thinking(options.reasoning_parser, "", "")


def _chat_options(options: argparse.Namespace) -> ChatOptions:
    return ChatOptions(
        chat_template=options.chat_template,
        tool_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
    )


def answer(llm: LLM, ids: Sequence[int], params: SamplingParams, silent: bool = False) -> Output:
    """Generate for `ids`, writing text to stdout as it comes; ids where there is no tokenizer."""
    generation = llm.stream(ids, params)
    for piece in generation:
        if not silent:
            sys.stdout.write(piece)
            sys.stdout.flush()
    output = generation.output()
    if not silent:
        end = "\n" if output.text is not None else " ".join(map(str, output.token_ids)) + "\n"
        sys.stdout.write(end)
        sys.stdout.flush()
    return output


def chat(llm: LLM, params: SamplingParams, raw: bool) -> int:
    """Answer lines of stdin until its end; the conversation so far is the prompt of each."""
    messages: list[dict[str, str]] = []
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return 0
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.rstrip("\n")})
        if raw or llm.chat_template is None:
            ids = llm.tokenizer.encode(line.rstrip("\n"), add_special_tokens=True)
        else:
            ids = llm.chat_ids(messages)
        try:
            output = answer(llm, ids, params)
        except RequestError as error:
            sys.stderr.write(f"{error}; the conversation starts anew\n")
            messages = []
            continue
        messages.append({"role": "assistant", "content": output.text or ""})
