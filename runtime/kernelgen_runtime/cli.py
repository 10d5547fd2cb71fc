"""Owns the commands `run`, `serve`, `logits`, `check`; heavy imports come after parsing."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from .commands.sampling_options import add_chat_options, add_sampling_options
from .device.wake import wake_gpu
from .errors import KernelgenRuntimeError, shown
from .launch.collector import importing

INTERRUPTED = 5


class _Parser(argparse.ArgumentParser):
    """A mistake is one line here as everywhere else, without the list of options above it."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with the code of a usage error."""
        self.exit(2, f"error: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None, artifact: str | None = None) -> int:
    """Run a command and return its exit code. `artifact` given: the command line names none."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["serve"]:
        words = _serve_words(words[1:], artifact)
    options = build_parser(artifact).parse_args(words)
    try:
        if options.command == "serve":
            from .server.command import serve

            return serve(options)
        wake_gpu(options.artifact, options.device)  # a server's engine is another process
        with importing() if "torch" not in sys.modules else nullcontext():
            from .commands.check import check
            from .commands.logits import logits
            from .commands.run import run
        commands = {"logits": logits, "check": check, "run": run}
        return commands[options.command](options)
    except KernelgenRuntimeError as error:
        if options.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away; the interpreter must not fail once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.debug:
            raise
        reason = shown(str(error), 300)
        print(f"error: {type(error).__name__}: {reason} (--debug shows where)", file=sys.stderr)
        return 1


def _serve_words(words: Sequence[str], artifact: str | None) -> list[str]:
    """Return the line of `serve` as its parser reads it; end where it cannot be meant."""
    from .server.command import serve_argv

    try:
        return ["serve", *serve_argv(words, artifact)]
    except KernelgenRuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def build_parser(artifact: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of every option."""
    program = Path(sys.argv[0])  # kernelgen, the script of a wheel, or a package's __main__.py
    name = program.parent.name if program.name == "__main__.py" else program.name
    parser = _Parser(prog=name, description="Run a model that kernelgen built.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="generate text and show how fast it went")
    serve = commands.add_parser(
        "serve", help="answer over HTTP as the OpenAI API does", allow_abbrev=False
    )
    from .server.command import add_serve

    add_serve(serve, artifact)
    logits = commands.add_parser("logits", help="write the logits of recorded cases")
    check = commands.add_parser("check", help="compare choices with their law in NumPy")
    for command in (run, logits, check):
        if artifact is None:
            command.add_argument("artifact", help="build folder, installed package or .whl file")
        command.add_argument(
            "--weights", required=True, metavar="DIR", help="checkpoint folder, or random[:SEED]"
        )
        command.add_argument(
            "--device",
            default="auto",
            metavar="WHERE",
            help="auto (the first GPU that fits, else the CPU), cpu or cuda[:i]",
        )
        command.add_argument("--threads", type=int, metavar="N", help="worker threads of the CPU")
        command.add_argument(
            "--max-model-len",
            type=_length,
            metavar="N",
            help="longest sequence; auto: the longest that the cache holds",
        )
        command.add_argument(
            "--max-num-batched-tokens", type=int, metavar="N", help="most tokens of one step"
        )
        command.add_argument(
            "--kv-cache-memory-bytes", type=int, metavar="N", help="memory of the cache"
        )
        command.add_argument(
            "--gpu-memory-utilization",
            type=_share,
            default=0.92,
            metavar="SHARE",
            help="of a GPU's memory, what may be used; default 0.92",
        )
        command.add_argument("--eager", action="store_true", help="no CUDA graphs")
        command.add_argument("--debug", action="store_true", help="show tracebacks")
        command.set_defaults(**({} if artifact is None else {"artifact": artifact}))
    _add_run_options(run)
    _add_engine_options(run)
    logits.add_argument("--cases", required=True, metavar="IN.npz", help="recorded cases")
    logits.add_argument("--out", required=True, metavar="OUT.npz", help="file to write")
    logits.add_argument("--chunk", type=int, metavar="N", help="most prompt tokens of one step")
    logits.add_argument("--batch", action="store_true", help="all cases in one batch")
    return parser


def _add_run_options(run: argparse.ArgumentParser) -> None:
    prompt = run.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="what to answer")
    prompt.add_argument("--prompt-ids", metavar="1,2,3", help="token ids, used as they are")
    prompt.add_argument("--interactive", action="store_true", help="chat on the terminal")
    prompt.add_argument(
        "--batch", metavar="FILE", help="requests in the OpenAI batch format, one a line"
    )
    run.add_argument("--raw", action="store_true", help="do not apply the chat template")
    run.add_argument(
        "--max-num-seqs",
        type=int,
        metavar="N",
        help="requests at once; default 1, of a batch 32 on the CPU and 256 on a GPU",
    )
    run.add_argument("--output", metavar="FILE", help="where the answers to --batch go, or went")
    add_sampling_options(run)
    add_chat_options(run)
    run.add_argument("--json", action="store_true", help="print one JSON object")
    run.add_argument(
        "--bandwidth-seconds",
        type=float,
        default=0.3,
        metavar="S",
        help="time to measure the read bandwidth, 0 leaves it out",
    )


def _add_engine_options(run: argparse.ArgumentParser) -> None:
    switch = argparse.BooleanOptionalAction
    run.add_argument(
        "--enable-prefix-caching",
        action=switch,
        default=True,
        help="prompts that begin alike share what was computed",
    )
    run.add_argument(
        "--prefix-cache-retention-interval",
        type=_interval,
        default=0,
        metavar="N",
        help="what windows keep of a prompt: none (all), 0 (its end; default), or every N tokens",
    )
    run.add_argument(
        "--scheduling-policy",
        choices=("fcfs", "priority"),
        default="fcfs",
        help="who goes first: who came first, or whose priority number is lowest",
    )
    run.add_argument(
        "--long-prefill-token-threshold",
        type=int,
        metavar="N",
        help="most tokens of one request in one step",
    )
    run.add_argument(
        "--async-scheduling",
        action=switch,
        help="launch a step before the last one has ended; default: what the device likes",
    )


def _length(text: str) -> int | str:
    return text if text == "auto" else _whole(text, "auto")


def _interval(text: str) -> int | None:
    return None if text == "none" else _whole(text, "none")


def _whole(text: str, word: str) -> int:
    try:
        return int(text)
    except ValueError:
        wanted = f"must be a whole number or {word}, is {shown(text)}"
        raise argparse.ArgumentTypeError(wanted) from None


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, is {shown(text)}")
    return value
