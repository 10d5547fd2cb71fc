"""What sampling asks of text: stop strings that come too early, bad words as ids, refusals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from kernelgen_runtime.errors import RequestError
from kernelgen_runtime.launch.details import kept_ids
from kernelgen_runtime.sample.demands import check_demands, with_bad_word_ids
from kernelgen_runtime.sample.mask import SamplingMask
from kernelgen_runtime.sample.params import SamplingParams
from kernelgen_runtime.text.detokenize import GrowingText


class Letters:
    """A tokenizer of single characters: ids are their codes."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [*([1] if add_special_tokens else []), *map(ord, text)]


@pytest.mark.row("B-08")
def test_a_stop_string_that_comes_too_early_is_ordinary_text() -> None:
    text = GrowingText(Letters(), [], stop=("ab",))
    shown = text.push([ord(c) for c in "xab"], may_stop=False)
    shown += text.push([ord(c) for c in "ya"]) + text.push([ord("b"), ord("z")])
    assert text.stopped_by == "ab" and shown == text.text == "xaby"


@pytest.mark.row("B-08")
def test_bad_words_are_met_at_the_start_and_inside() -> None:
    params = SamplingParams(bad_words=("hi", " hi", "x"), bad_word_ids=((5, 6),))
    found = with_bad_word_ids(params, Letters())
    hi, x = (ord("h"), ord("i")), ord("x")
    assert found.bad_word_ids == ((5, 6), hi, (32, *hi), (x,), (32, x)) and not found.bad_words
    assert with_bad_word_ids(found, Letters()) is found
    with pytest.raises(RequestError, match="must be up to 128 sequences of 1 to 16"):
        with_bad_word_ids(SamplingParams(bad_words=("y" * 17,)), Letters())


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"min_tokens": 1}, "min_tokens"),
        ({"frequency_penalty": 0.1}, "penalties"),
        ({"min_p": 0.1}, "min_p"),
        ({"prompt_logprobs": 0}, "logprobs"),
        ({"logprob_token_ids": (1,)}, "logprobs"),
        ({"top_k": 3, "return_sampling_mask": True}, "return_sampling_mask"),
    ],
)
def test_an_artifact_without_rules_says_what_it_lacks(values: dict[str, object], name: str) -> None:
    params = SamplingParams(**values)  # type: ignore[arg-type]
    check_demands(params, 9, has_rules=True, is_marked=False)
    with pytest.raises(RequestError, match=f"built without .*{name}.*; build the model again"):
        check_demands(params, 9, has_rules=False, is_marked=False)


@pytest.mark.row("R-096")
def test_kept_sets_come_as_sparse_rows() -> None:
    few = np.array([3, 7, 2, 5, 0, 0], np.int32)
    bits = np.zeros(1 + 4096 // 32, np.int32)
    bits[0], bits[1:] = 4096, -1
    rows = [kept_ids(few, 9), kept_ids(few[:1] * 0, 9), kept_ids(bits, 4090)]
    mask = SamplingMask.of(rows)
    assert mask.starts.tolist() == [0, 3, 3, 4093] and mask.ids.dtype == np.int32
    assert mask.row(0).tolist() == [2, 5, 7] and not len(mask.row(1))
    assert mask.row(2).tolist() == list(range(4090))
    assert not len(SamplingMask.of([]).ids)
