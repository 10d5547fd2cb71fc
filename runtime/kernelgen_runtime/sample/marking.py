"""Owns which requests are marked, and what is counted of those that are not."""

from enum import StrEnum

from ..errors import RequestError
from .params import SamplingParams
from .watermark import Watermark


class Marking(StrEnum):
    """What became of a request: marked, wanted but not possible, or not wanted."""

    WATERMARKED = "watermarked"
    SKIPPED = "skipped"
    NOT_WATERMARKED = "not_watermarked"


def check_watermark(mark: object) -> Watermark | None:
    """Return a key that is one, or none. Raises RequestError; the value may be a secret."""
    if mark is None or isinstance(mark, Watermark):
        return mark
    raise RequestError(f"watermark: must be Watermark(key) or none, is a {type(mark).__name__}")


def marking(params: SamplingParams, mark: Watermark | None) -> Marking:
    """Return whether a request is marked where the key is `mark` (None: none is set).

    Raises RequestError where it insists and no key is set. Greedy choices are never marked.
    """
    if params.watermarking and mark is None:
        raise RequestError("watermarking: no key is set here; leave it out or set a key")
    if mark is None or params.watermarking is False:
        return Marking.NOT_WATERMARKED
    return Marking.SKIPPED if params.temperature == 0 else Marking.WATERMARKED
