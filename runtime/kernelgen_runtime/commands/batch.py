"""Owns `run --batch`: a file of requests in, a file of answers out, a bar between."""

import argparse
import sys
import time
from pathlib import Path

from ..batch.drive import Drive, Told
from ..batch.journal import Journal
from ..batch.lines import read_lines
from ..batch.resume import count_lines
from ..chat.front import ChatFront
from ..errors import LaunchError, RequestError
from ..llm import LLM

# Options of a single prompt, with the value that says they were not given.
_OF_ONE_PROMPT: dict[str, object] = {
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "min_p": None,
    "min_tokens": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": None,
    "logit_bias": {},
    "allowed_token_ids": None,
    "bad_word": [],
    "seed": None,
    "stop": [],
    "stop_token_ids": (),
    "logprobs": None,
    "prompt_logprobs": None,
    "ignore_eos": False,
    "raw": False,
    "json": False,
}
SEQS_ON_CPU, SEQS_ON_GPU = 32, 256


def check_batch(options: argparse.Namespace) -> None:
    """Refuse what cannot be meant, before anything is loaded. Raises RequestError."""
    if options.batch is None:
        if options.output is not None:
            raise RequestError("--output: belongs to --batch")
        return
    if options.output is None:
        raise RequestError("--batch: needs --output FILE for the answers")
    for name, unset in _OF_ONE_PROMPT.items():
        if getattr(options, name) != unset:
            option = "--" + name.replace("_", "-")
            raise RequestError(f"{option}: the requests of a batch say that themselves")
    source, target = Path(options.batch), Path(options.output)
    if not source.is_file():
        raise RequestError(f"{source}: there is no such file")
    if target.exists() and target.samefile(source):
        raise RequestError(f"{target}: --output must not be the file of requests")


def run_batch(llm: LLM, source: Path, target: Path, front: ChatFront | None = None) -> int:
    """Answer the requests of `source` into `target`; return the exit code.

    0: every request has its line, be it an error. Raises LaunchError where the device fails; what
    has an answer keeps it, and the same command goes on with the rest.
    """
    with Journal(target) as journal:
        total = count_lines(source, journal.done)
        progress = Progress(total, len(journal.done))

        def tell(told: Told) -> None:
            journal.write(told.answer)
            progress.tell(told)

        lines = (line for line in read_lines(source) if line.number not in journal.done)
        try:
            Drive(llm, tell, front).run(lines)
        except LaunchError as error:
            left = total - progress.done
            raise LaunchError(f"{error}; {left} requests are left: run it again") from None
        finally:
            progress.close()
    return 0


class Progress:
    """A bar on a terminal, and one line of figures at the end."""

    def __init__(self, total: int, done: int) -> None:
        self.done, self._total, self._before = done, total, done
        self._failed = self._prompt = self._output = 0
        self._start = time.perf_counter()
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            said = TextColumn("{task.fields[said]}")
            self._bar = Bar(*columns, said, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=total, completed=done, said="")

    def tell(self, told: Told) -> None:
        """Count one answer."""
        self.done += 1
        self._failed += told.failed
        self._prompt += told.prompt_tokens
        self._output += told.output_tokens
        if self._bar is not None:
            rate = self._output / (time.perf_counter() - self._start)
            failed = f", {self._failed} failed" if self._failed else ""
            self._bar.update(self._task, completed=self.done, said=f"{rate:.0f} tokens/s{failed}")

    def close(self) -> None:
        """Take the bar away and print what was done."""
        if self._bar is not None:
            self._bar.stop()
        seconds = max(time.perf_counter() - self._start, 1e-9)
        before = f" ({self._before} by earlier runs)" if self._before else ""
        print(
            f"{self.done} of {self._total} requests answered{before}, {self._failed} failed; "
            f"{self._prompt} prompt and {self._output} generated tokens in {seconds:.1f} s, "
            f"{self._output / seconds:.1f} tokens/s",
            file=sys.stderr,
        )
