"""Owns compiling grammars for one tokenizer: bounded, cached, a fresh guide for each request."""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RequestError, TextError, shown
from ..sample.structured import Structured
from .calls import calls_lark
from .guide import Guide
from .lark import JSON_OPTIONS, json_rule, quoted, thinking_rules
from .library import Matcher, Tokens, load_library
from .trial import Trial

KEPT = 64
"""compiled grammars kept"""
_LIMITS = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 30_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
ANY_OBJECT = '{"type": "object"}'


class Grammars:
    """Grammars over the tokens of one tokenizer file, for a vocabulary of `vocab` ids.

    `end_ids` are what may come once a text is complete. The library behind it is loaded when the
    first grammar is asked for. Safe for several threads, unless they are `tried` first.
    """

    def __init__(self, tokenizer_file: Path, vocab: int, end_ids: Sequence[int]) -> None:
        self._file, self._vocab, self._ends = tokenizer_file, vocab, tuple(end_ids)
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._loaded: Tokens | None = None
        self._compiled: OrderedDict[Structured, Matcher | str] = OrderedDict()
        self._trial: Trial | None = None

    @property
    def words(self) -> int:
        """int32 words of a row of bits, one for each token."""
        return -(-self._vocab // 32)

    def prepare(self) -> None:
        """Load the library and read the tokenizer, which the first grammar would do. Raises
        RequestError without the library, TextError for a tokenizer that it cannot use.
        """
        self._tokenizer(load_library())

    def trial(self) -> Trial:
        """Return where grammars may be tried; from now on they are, before they are compiled."""
        if self._trial is None:
            self._trial = Trial(self._file, self._vocab, self._ends)
        return self._trial

    def check(self, structured: Structured) -> None:
        """Compile `structured`, or find it compiled. Raises RequestError where it cannot be."""
        self._matcher(structured)

    def guide(self, structured: Structured) -> Guide:
        """Return a guide at the start of `structured`. Raises RequestError."""
        return Guide(self._matcher(structured).deep_copy())

    def _matcher(self, structured: Structured) -> Matcher:
        with self._lock:
            found = self._compiled.pop(structured, None)
            if found is not None:
                self._compiled[structured] = found  # the last to go
        if found is None:
            # Outside the lock: nobody whose grammar is there waits for that of another.
            found = self._compile(structured)
            with self._lock:
                self._compiled[structured] = found
                if len(self._compiled) > KEPT:
                    self._compiled.popitem(last=False)
        if isinstance(found, str):
            raise RequestError(found)
        return found

    def _compile(self, structured: Structured) -> Matcher | str:
        """Return a matcher at its start, or why there is none."""
        library = load_library()
        tokenizer = self._tokenizer(library)
        if self._trial is not None and (fault := self._trial.fault(structured)):
            return fault
        try:
            text = grammar_text(library, tokenizer, structured)
        except ValueError as error:
            return f"structured output: {shown(str(error), 200)}"
        matcher: Matcher = library.LLMatcher(
            tokenizer, text, log_level=0, limits=library.LLParserLimits(**_LIMITS)
        )
        matcher = self._begun(matcher)
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())
            if "NoExtensionBias" in reason:
                reason = "no text that ends is of it"
            return f"structured output: {structured.kind}: {shown(reason, 300)}"
        return matcher

    def _begun(self, matcher: Matcher) -> Matcher:
        """Return `matcher` with the work of its first mask done, or what failed in a first token.

        An expression is taken apart no sooner: what is wrong with it shows here, not in the middle
        of a step, and requests that follow find the work done.
        """
        bits = np.empty(self.words, np.int32)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if not matcher.is_error():
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
            one = matcher.deep_copy()
            if len(allowed) and not one.consume_token(int(allowed[0])) and one.is_error():
                return one
        return matcher

    def _tokenizer(self, library: Any) -> Tokens:
        with self._loading:
            if self._loaded is None:
                try:
                    text = self._file.read_text(encoding="utf-8")
                    ends = list(self._ends) or None
                    self._loaded = library.LLTokenizer(text, n_vocab=self._vocab, eos_token=ends)
                except (OSError, ValueError) as error:
                    reason = shown(str(error), 200)
                    raise TextError(
                        f"{self._file}: cannot be used for structured output ({reason})"
                    ) from None
        return self._loaded


def grammar_text(library: Any, tokenizer: Tokens, structured: Structured) -> str:
    """Return the grammar in the library's own form. Raises ValueError."""
    kind, text, make = structured.kind, structured.text, library.LLMatcher
    if kind in ("json_schema", "json_object") and not structured.closes:
        return str(make.grammar_from_json_schema(text or ANY_OBJECT, overrides=JSON_OPTIONS))
    if kind == "lark":
        if structured.closes:
            raise ValueError("a grammar of your own cannot follow reasoning; switch reasoning off")
        return str(make.grammar_from_lark(text))
    body, rules = _body(library, tokenizer, kind, text)
    before, more = thinking_rules(tokenizer, structured.opens, structured.closes)
    lark = "\n".join([f"start: {before} {body}", *more, *rules, ""])
    return str(make.grammar_from_lark(lark))


def _body(library: Any, tokenizer: Tokens, kind: str, text: str) -> tuple[str, list[str]]:
    if kind == "choice":
        return "answer", ["answer: " + " | ".join(quoted(one) for one in json.loads(text))]
    if kind == "regex":
        expression = library.regex_to_lark(unanchored(text), "d")
        return "answer", [f"answer: /{expression}/"]
    if kind == "calls":
        return calls_lark(tokenizer, json.loads(text))
    return "answer", [f"answer: {json_rule(json.loads(text or ANY_OBJECT))}"]


def unanchored(expression: str) -> str:
    """Return an expression without ^ and $ at its ends: the whole text has to match anyway."""
    expression = expression.removeprefix("^")
    body = expression.removesuffix("$")
    escapes = len(body) - len(body.rstrip("\\"))
    return body if escapes % 2 == 0 else expression
