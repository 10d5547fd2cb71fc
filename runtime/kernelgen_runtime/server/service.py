"""Owns one server's state: the engine, who may come in, what is counted, and whether it is well."""

import asyncio
import logging
import time
from collections.abc import Mapping
from enum import StrEnum

from ..artifact.bounded_json import Json
from ..chat.front import ChatFront
from ..chat.prompt import ChatOptions
from ..errors import shown
from ..text.settings import GenerationDefaults, resolve_defaults
from ..text.tokenizer import TOKENIZER, TextTokenizer
from .admission import Admission, Ticket
from .ask import Reading, Told
from .child import EngineProcess
from .choice import Choice
from .job import Job
from .link import EngineDeadError, EngineLink
from .meters import Meters
from .metrics import Numbers
from .options import ServeOptions
from .wire import Facts, Stepped

LOG = logging.getLogger("kernelgen.server")
MOST_UNKNOWN_FIELDS = 1000


class State(StrEnum):
    """Where a server is in its life."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class Service:
    """What the routes work with. `start` it, then `close` it, on one event loop."""

    def __init__(self, options: ServeOptions, child: EngineProcess | None = None) -> None:
        """`child` None: an engine process is started with the service."""
        flags = options.flags
        self.options, self.flags = options, flags
        self.names: tuple[str, ...] = tuple(flags.served_model_name or ())
        self.admission = Admission(flags.max_num_queued_reqs, flags.max_num_queued_tokens)
        self.meters = Meters()
        self.numbers: Numbers | None = None
        self.started = time.time()
        self.load = 0
        """requests that are being answered"""
        self.link: EngineLink | None = None
        self.child = child
        self.reading: Reading | None = None
        self.tokenizer: TextTokenizer | None = None
        self.front: ChatFront | None = None
        self._open: dict[Job | Ticket, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._unknown: set[str] = set()

    @property
    def state(self) -> State:
        """How it is now."""
        if self.link is not None and self.link.ended.done():
            return State.DEAD
        if self.admission.closed:
            return State.DRAINING
        return State.LOADING if self.reading is None else State.READY

    @property
    def facts(self) -> Facts | None:
        """What the engine said of itself; None until it is ready."""
        return self.link.facts if self.link is not None else None

    async def start(self) -> Facts:
        """Start the engine and wait until requests can come.

        Raises EngineDeadError where it does not start, TextError for a tokenizer or template that
        cannot be used.
        """
        self.child = self.child or EngineProcess()
        self.link = await EngineLink.connect(self.child.socket, self.options.engine)
        return await self._get_ready(self.link)

    async def _get_ready(self, link: EngineLink) -> Facts:
        text = asyncio.create_task(asyncio.to_thread(self._read_text))
        facts = await link.ready
        defaults = await text
        flags = self.flags
        if self.tokenizer is not None and self.options.folder is not None:
            self.front = await asyncio.to_thread(self._make_front, facts.architecture)
        self.names = self.names or (facts.name,)
        self.numbers = Numbers(flags.metrics_prefix, self.names[0], self.meters, self.admission)
        self.numbers.facts = facts
        link.on_step = self._stepped
        self.reading = Reading(
            names=self.names,
            defaults=defaults,
            max_model_len=facts.max_model_len,
            max_logprobs=flags.max_logprobs,
            tokenizer=self.tokenizer,
            front=self.front,
            more_ends=tuple(set(defaults.eos_token_ids or ()) - set(facts.end_ids)),
            told=Told(
                tokens_as_ids=flags.return_tokens_as_token_ids,
                usage_in_stream=flags.enable_force_include_usage,
                usage_in_chunks=flags.enable_force_include_usage,
            ),
        )
        return facts

    def note_unknown(self, body: Mapping[str, Json], known: Mapping[str, object]) -> None:
        """Log, once for each name, fields that nobody reads."""
        for name in body.keys() - known.keys() - self._unknown:
            if len(self._unknown) < MOST_UNKNOWN_FIELDS:
                self._unknown.add(name)
                LOG.warning("field %s is not known; it is ignored", shown(name))

    def enter(self, work: Job | Ticket) -> None:
        """Count something as under way: a request that is read (its ticket), or its job."""
        self._open[work] = None
        self._idle.clear()

    def leave(self, work: Job | Ticket) -> None:
        """Count it no more."""
        self._open.pop(work, None)
        if not self._open:
            self._idle.set()

    def finish(self, job: Job) -> None:
        """Let go of a job, however it ended."""
        job.close()
        self.leave(job)

    def ended(self, job: Job, choice: Choice) -> None:
        """Count a choice that has ended."""
        self.meters.ended(job, choice)
        if choice.finish_reason == "abort":
            LOG.info("%s: choice %d aborted after %d tokens", job.id, choice.index, len(choice.ids))

    async def drain(self, seconds: float) -> None:
        """Take nothing new; wait up to `seconds` for what is under way, then end it."""
        self.admission.closed = True
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
            except TimeoutError:
                LOG.warning("%d requests are not done; they are aborted", len(self._open))
        for work in list(self._open):
            if isinstance(work, Job):
                work.abort()

    async def close(self) -> None:
        """End the engine process; it is gone afterwards."""
        if self.link is not None:
            self.link.close()
        if self.child is not None:
            await asyncio.to_thread(self.child.close)

    def check_well(self) -> EngineLink:
        """Return the engine where it can be asked. Raises EngineDeadError otherwise."""
        if self.link is None or self.reading is None or not self.link.is_ready:
            raise EngineDeadError("the model is not ready")
        return self.link

    def _stepped(self, stepped: Stepped) -> None:
        self.meters.stepped(stepped)
        if self.numbers is not None:
            self.numbers.load = stepped.load

    def _read_text(self) -> GenerationDefaults:
        folder, flags = self.options.folder, self.flags
        if folder is not None and (folder / TOKENIZER).is_file():
            self.tokenizer = TextTokenizer(folder)
        changes = flags.override_generation_config
        return resolve_defaults(folder, flags.generation_config, changes)

    def _make_front(self, architecture: str) -> ChatFront:
        flags = self.flags
        assert self.options.folder is not None and self.tokenizer is not None
        options = ChatOptions(
            chat_template=flags.chat_template,
            content_format=flags.chat_template_content_format,
            tool_parser=flags.tool_call_parser if flags.enable_auto_tool_choice else "none",
            reasoning_parser=flags.reasoning_parser,
            template_kwargs=flags.default_chat_template_kwargs,
            trust_request_template=flags.trust_request_chat_template,
        )
        return ChatFront(self.options.folder, self.tokenizer, architecture, options)
