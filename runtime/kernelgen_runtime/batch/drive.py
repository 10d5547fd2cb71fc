"""Owns running a batch: requests go in as there is room, answers come out as they end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..chat.front import ChatFront, Prepared
from ..errors import KernelgenRuntimeError, LaunchError, shown
from ..generation import Generation
from ..llm import LLM
from ..schedule.request import Request
from .answer import Answer, refused, served, unread
from .body import wanted
from .lines import Line

MOST_FAILURES = 3
"""steps that fail one after the other before the engine counts as dead"""


@dataclass(frozen=True)
class Told:
    """An answer, and the tokens that it took."""

    answer: Answer
    failed: bool
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass
class _Job:
    line: Line
    generations: list[Generation]
    tells_ids: bool
    chat: Prepared | None

    @property
    def is_finished(self) -> bool:
        return all(generation.is_finished for generation in self.generations)


class Drive:
    """A batch on its way through an engine. `run` tells each answer as soon as it is there."""

    def __init__(
        self, llm: LLM, tell: Callable[[Told], None], front: ChatFront | None = None
    ) -> None:
        self._llm, self._tell = llm, tell
        self._front = front or (ChatFront.of(llm) if llm.has_tokenizer else None)
        self._jobs: dict[Request, tuple[_Job, Generation]] = {}
        self._capacity = 2 * llm.limits.max_num_seqs

    def run(self, lines: Iterator[Line]) -> None:
        """Answer all lines.

        A step that fails ends its requests, and the engine lives on. Their answers are told once a
        later step has gone well: after three failures in a row LaunchError is raised, and they are
        left to whoever runs the batch again.
        """
        failures, lost = 0, list[_Job]()
        try:
            while self._fill(lines):
                try:
                    gained = self._llm.engine.step()
                except LaunchError:
                    failures += 1
                    lost += self._take([r for r in self._jobs if r.finish_reason is not None])
                    if failures == MOST_FAILURES:
                        raise
                    continue
                failures = 0
                for job in (*lost, *self._take(gained)):
                    self._tell(self._told(job))
                lost = []
            for job in lost:
                self._tell(self._told(job))
        finally:
            for _, generation in self._jobs.values():
                generation.abort()
            self._jobs.clear()
            self._llm.engine.drain()

    def _fill(self, lines: Iterator[Line]) -> bool:
        """Start requests while there is room; return whether any are under way."""
        while len(self._jobs) < self._capacity and (line := next(lines, None)) is not None:
            if line.problem or line.body is None:
                self._tell(Told(unread(line), failed=True))
                continue
            try:
                self._start(line)
            except KernelgenRuntimeError as error:
                self._tell(Told(refused(line, 400, str(error)), failed=True))
            except Exception as error:  # of a template or a tokenizer: it ends this line only
                reason = f"{type(error).__name__}: {shown(str(error), 200)}"
                self._tell(Told(refused(line, 500, reason), failed=True))
        return bool(self._jobs)

    def _start(self, line: Line) -> None:
        """Begin all choices of a request, or none. Raises RequestError, TextError."""
        asked = wanted(self._llm, self._front, line.url, line.body or {})
        decoder = asked.chat.decoder if asked.chat else None
        rank, salt, params = asked.priority, asked.cache_salt, asked.params
        generations = [
            generation
            for prompt in asked.prompts
            for generation in self._llm.choices(
                prompt, params, priority=rank, cache_salt=salt, decoder=decoder
            )
        ]
        job = _Job(line, generations, asked.tells_ids, asked.chat)
        for generation in generations:
            generation.begin()
            self._jobs[generation.request] = (job, generation)

    def _take(self, moved: list[Request]) -> list[_Job]:
        """Note what came for requests; return the jobs that have ended."""
        ended = []
        for request in moved:
            job, generation = self._jobs[request]
            generation.advance()
            if not generation.is_finished:
                continue
            generation.finish()
            del self._jobs[request]
            if job.is_finished:
                ended.append(job)
        return ended

    def _told(self, job: _Job) -> Told:
        outputs = [generation.output() for generation in job.generations]
        prompt = sum(len(output.prompt_ids) for output in outputs if output.index == 0)
        generated = sum(len(output.token_ids) for output in outputs)
        errors = [o.error or "the step failed" for o in outputs if o.finish_reason == "error"]
        if errors:
            return Told(refused(job.line, 500, errors[0]), True, prompt, generated)
        model, text_of = self._llm.manifest.name, self._text_of
        answer = served(job.line, model, outputs, job.tells_ids, text_of, job.chat)
        return Told(answer, False, prompt, generated)

    def _text_of(self, token: int) -> str:
        """Return the text of one token, or its number where there is no tokenizer."""
        if not self._llm.has_tokenizer:
            return f"token_id:{token}"
        return self._llm.tokenizer.decode([token], skip_special_tokens=False)
