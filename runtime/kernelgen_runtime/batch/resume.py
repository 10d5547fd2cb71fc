"""Owns going on with a batch: the answers that are there must be answers to this very file."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import RequestError, shown
from .lines import parse_line, raw_lines


def count_lines(path: Path, done: Mapping[int, str | None]) -> int:
    """Return how many lines of a batch file are not blank.

    `done` holds the custom id of each line that has an answer already. Raises RequestError where
    the file has another one there, or no such line.
    """
    count, left = 0, set(done)
    for number, text in raw_lines(path):
        count += 1
        if number not in left:
            continue
        left.remove(number)
        custom_id = parse_line(number, text).custom_id
        if custom_id != done[number]:
            raise RequestError(
                f"{path}: line {number} has custom_id {shown(custom_id)}, its answer has "
                f"{shown(done[number])}: --output belongs to another batch; give another one"
            )
    if left:
        raise RequestError(
            f"{path}: has no line {min(left)}, but there is an answer to it: --output belongs to "
            "another batch; give another one"
        )
    return count
