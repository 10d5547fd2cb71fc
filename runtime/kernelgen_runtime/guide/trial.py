"""Owns trying a grammar in a process of its own, which is killed where it takes too long.

The library bounds most of its work, but not intersections of expressions nor `multipleOf`: a few
kilobytes of schema can keep it busy for hours, and a thread cannot be stopped.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..artifact.bounded_json import Json
from ..sample.structured import Structured

SECONDS = 3.0
"""what one grammar may take, its first mask included"""
START_SECONDS = 60.0
_COSTLY = {"pattern", "patternProperties", "format", "multipleOf", "allOf"}


def is_costly(structured: Structured) -> bool:
    """Whether the work of compiling a grammar has no bound that its text shows."""
    if structured.kind in ("regex", "lark"):
        return True
    if structured.kind not in ("json_schema", "calls"):
        return False
    rest: list[Json] = [structured.schema]
    while rest:
        node = rest.pop()
        if isinstance(node, dict):
            if not _COSTLY.isdisjoint(node):
                return True
            rest += node.values()
        elif isinstance(node, list):
            rest += node
    return False


class Trial:
    """Tries grammars for one tokenizer file, one after the other, in a process started when needed.

    For one thread; `close` may come from another, and ends what is under way.
    """

    def __init__(
        self, tokenizer_file: Path, vocab: int, end_ids: Sequence[int], seconds: float = SECONDS
    ) -> None:
        self._about = [str(tokenizer_file), str(vocab), json.dumps(list(end_ids))]
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def fault(self, structured: Structured) -> str:
        """Return why `structured` cannot be compiled, "" where it can, in the time there is."""
        if not is_costly(structured):
            return ""
        answer = self._ask(structured)
        if answer is None:
            self.kill()
            return (
                f"structured output: {structured.kind}: compiling it takes more than "
                f"{self._seconds:g} s or too much memory; a simpler one will do"
            )
        return answer

    def kill(self) -> None:
        """End the process; the next grammar starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                assert end is not None
                end.close()

    def close(self) -> None:
        """End the process for good."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def _ask(self, structured: Structured) -> str | None:
        """Return what the process says of a grammar; None where it does not answer in time."""
        if self._process is None or self._process.poll() is not None:
            self.kill()
            if self._closed:
                return None
            self._process = self._started()
            if _line(self._process, START_SECONDS) is None:
                return None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(structured.to_json()).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        line = _line(self._process, self._seconds)
        return None if line is None else str(json.loads(line))

    def _started(self) -> subprocess.Popen[bytes]:
        module = f"{__package__}.trial_main"
        return subprocess.Popen(
            [sys.executable, "-m", module, str(os.getpid()), *self._about],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """Return the next line that a process writes; None where none comes in time, or it ended."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds)[0]:
        return None
    return process.stdout.readline() or None
