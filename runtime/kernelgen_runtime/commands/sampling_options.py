"""Owns what the command line may ask of sampling, and the parameters that it means."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..sample.params import SamplingParams
    from ..text.settings import GenerationDefaults


def add_sampling_options(run: argparse.ArgumentParser) -> None:
    """Add one option for each sampling parameter of a single prompt."""
    run.add_argument("--max-tokens", type=int, default=256, metavar="N", help="default 256")
    run.add_argument("--min-tokens", type=int, default=0, metavar="N", help="end no earlier")
    run.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    run.add_argument("--top-k", type=int, metavar="K", help="0 is off")
    run.add_argument("--top-p", type=float, metavar="P", help="1 is off")
    run.add_argument("--min-p", type=float, metavar="P", help="share of the likeliest; 0 is off")
    for name, off in (("presence", 0.0), ("frequency", 0.0), ("repetition", 1.0)):
        run.add_argument(
            f"--{name}-penalty",
            type=float,
            metavar="X",
            default=None if name == "repetition" else off,
            help=f"{off:g} is off",
        )
    run.add_argument(
        "--logit-bias", type=_bias, default={}, metavar="ID:X,…", help="added to logits"
    )
    run.add_argument(
        "--allowed-token-ids", type=_ids, metavar="ID,…", help="nothing else is chosen"
    )
    run.add_argument(
        "--bad-word", action="append", default=[], metavar="TEXT", help="never write it"
    )
    run.add_argument("--seed", type=int, metavar="N", help="same seed, same text")
    run.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before it")
    run.add_argument(
        "--stop-token-ids", type=_ids, default=(), metavar="ID,…", help="end at one of them"
    )
    run.add_argument("--ignore-eos", action="store_true", help="go on until --max-tokens")
    run.add_argument(
        "--logprobs", type=int, metavar="N", help="of each token and the N likeliest; in --json"
    )
    run.add_argument("--prompt-logprobs", type=int, metavar="N", help="of the prompt; in --json")


def add_chat_options(run: argparse.ArgumentParser) -> None:
    """Add what chats of a batch are read and written with."""
    run.add_argument(
        "--chat-template", metavar="FILE", help="in the place of the checkpoint's; or its text"
    )
    run.add_argument(
        "--tool-call-parser",
        default="auto",
        metavar="NAME",
        help="how tool calls of a batch are written; default: as the template tells",
    )
    run.add_argument(
        "--reasoning-parser",
        default="auto",
        metavar="NAME",
        help="how thoughts of a batch are written; default: as the template tells",
    )


def sampling_of(options: argparse.Namespace, defaults: "GenerationDefaults") -> "SamplingParams":
    """Return what the options mean; the checkpoint's generation defaults where they say nothing.

    Raises RequestError naming each parameter out of range.
    """
    from ..sample.params import SamplingParams

    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given: dict[str, Any] = {
        name: getattr(options, name) for name in names if getattr(options, name) is not None
    }
    usual = {name: getattr(defaults, name) for name in names}
    return SamplingParams(
        max_tokens=options.max_tokens,
        min_tokens=options.min_tokens,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=options.logit_bias,
        allowed_token_ids=options.allowed_token_ids,
        bad_words=tuple(options.bad_word),
        seed=options.seed,
        stop=tuple(options.stop),
        stop_token_ids=options.stop_token_ids,
        ignore_eos=options.ignore_eos,
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_logprobs,
        **(usual | given),
    )


def _ids(text: str) -> tuple[int, ...]:
    """Whole numbers with commas."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        message = f"must be token ids with commas, is {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def _bias(text: str) -> Mapping[int, float]:
    """`ID:NUMBER` with commas."""
    found = {}
    for pair in text.split(","):
        token, _, value = pair.partition(":")
        try:
            found[int(token)] = float(value)
        except ValueError:
            message = f"must be ID:NUMBER with commas, has {pair!r}"
            raise argparse.ArgumentTypeError(message) from None
    return found
