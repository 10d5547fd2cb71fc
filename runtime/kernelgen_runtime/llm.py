"""Owns the offline interface: an artifact and weights in, text or logits out."""

import contextlib
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .artifact.open import Artifact, open_artifact
from .asked import read_each, read_ids, read_params, read_prompts, read_weights
from .clock import Laps, default_threads
from .config import check_options, resolve_limits, resolve_retention, resolve_steps
from .device.choose import AUTO, Choice, choose
from .device.cuda import CudaDevice
from .device.open import open_device
from .engine import Engine
from .errors import RequestError, TextError
from .generation import Generation, Output
from .guide.grammars import Grammars
from .launch.library import CompiledLibrary, StepLibrary
from .launch.loading import UTILIZATION, Demand, fixed_pages, ready_runner
from .launch.plans import plans_in_use
from .launch.program import Program
from .memory.cache import CacheTables
from .memory.pool import PagePool
from .memory.sizing import longest_that_fits
from .sample.demands import check_demands, with_bad_word_ids
from .sample.marking import Marking, check_watermark, marking
from .sample.params import SamplingParams
from .sample.watermark import Watermark
from .schedule.limits import Policy
from .schedule.request import Request, check_rank, check_salt
from .schedule.scheduler import Scheduler
from .scoring import Case, Logits, Score, score
from .text.detokenize import Decoder, GrowingText
from .text.settings import GenerationDefaults, read_chat_template, read_generation_defaults
from .text.tokenizer import TOKENIZER, TextTokenizer
from .weights.load import Told, load_weights, no_one
from .weights.random import parse_random

if TYPE_CHECKING:
    from .text.chat_template import ChatTemplate


class LLM:
    """A built model with its weights, ready to generate.

    `weights` is a checkpoint folder or `random[:SEED]`; `device` is "auto", "cpu", "cuda[:i]" or a
    choice made before. `kv_cache_memory_bytes` None gives every request `max_model_len` tokens of
    cache as far as memory goes: 1 GiB on the CPU (and one request in any case), on a GPU what
    `gpu_memory_utilization` of all its memory leaves. `logit_rows` is how many rows of logits
    there is room for, at least one a request (default: as many as a step may ask). `graphs` False
    launches decode steps kernel by kernel. `max_model_len` "auto" is the longest that the cache
    holds.

    `scheduling_policy` is "fcfs" or "priority". `async_scheduling` launches a step before the last
    one has ended; None leaves it to the device. Prompts that begin alike share cache pages unless
    `enable_prefix_caching` is False; `prefix_cache_retention_interval` says what windows keep (see
    `Retention`). `watermark` marks what requests choose, unless they opt out; `watermark_requests`
    counts them. `library` takes the place of the compiled one; `told` hears how far the
    weights are. `laps` says what of the start took how long, `graphs` how many were captured.
    Raises a KernelgenRuntimeError for what cannot work.
    """

    def __init__(
        self,
        artifact: str | Path | Artifact,
        weights: str | Path,
        *,
        device: str | Choice = AUTO,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int | None = None,
        max_model_len: int | Literal["auto"] | None = None,
        kv_cache_memory_bytes: int | None = None,
        gpu_memory_utilization: float = UTILIZATION,
        threads: int | None = None,
        chunk_tokens: int | None = None,
        logit_rows: int | None = None,
        graphs: bool = True,
        scheduling_policy: str = Policy.FCFS,
        async_scheduling: bool | None = None,
        enable_prefix_caching: bool = True,
        prefix_cache_retention_interval: int | None = 0,
        library: StepLibrary | None = None,
        watermark: Watermark | None = None,
        told: Told = no_one,
    ) -> None:
        self.laps = Laps()
        check_options(
            {
                "threads": threads,
                "logit_rows": logit_rows,
                "kv_cache_memory_bytes": kv_cache_memory_bytes,
                "gpu_memory_utilization": gpu_memory_utilization,
                "graphs": graphs,
                "enable_prefix_caching": enable_prefix_caching,
            }
        )
        weights = read_weights(weights)
        self._watermark = check_watermark(watermark)
        self.artifact = artifact if isinstance(artifact, Artifact) else open_artifact(artifact)
        if not isinstance(device, Choice):
            device = choose(self.artifact.manifests, device)
        self.manifest = manifest = device.manifest
        self.device = open_device(device)
        self.laps.end("device")
        limits = resolve_limits(
            manifest,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            chunk_tokens,
            resolve_steps(self.device.steps_in_flight, async_scheduling),
            scheduling_policy,
        )
        retention = resolve_retention(enable_prefix_caching, prefix_cache_retention_interval)
        plans = plans_in_use(manifest.plans, max_num_seqs, limits.max_num_batched_tokens)
        rows = max(logit_rows or manifest.args.max_rows, max_num_seqs)
        rows = min(rows, manifest.args.max_rows)
        most_told = min(rows, max(plan.logit_rows for plan in plans.all))
        limits = replace(limits, told_tokens=max(1, most_told // 2, most_told - max_num_seqs))
        self.limits = limits
        demand = Demand(
            limits,
            plans,
            rows,
            kv_cache_memory_bytes,
            gpu_memory_utilization,
            graphs,
            may_shorten=max_model_len == "auto",
        )
        fixed_pages(manifest, demand, isinstance(self.device, CudaDevice))  # refuse it early
        self.threads = default_threads() if threads is None else threads
        self.library = library or CompiledLibrary(self.artifact, manifest)
        self.library.set_threads(self.threads)
        self.folder = None if parse_random(str(weights)) is not None else Path(weights)
        self.laps.end("library")
        self.weights = load_weights(manifest, weights, self.device, told)
        self.laps.end("weights")
        runner, self.pages = ready_runner(
            self.device, self.library, manifest, self.weights.tensors, demand, self.laps
        )
        if demand.may_shorten:
            in_flight, longest = limits.in_flight_tokens, limits.max_model_len
            longest = longest_that_fits(manifest.cache, self.pages, longest, in_flight)
            self.limits = limits = replace(limits, max_model_len=longest)
        self.graphs = len(plans.decode) if graphs and isinstance(self.device, CudaDevice) else 0
        tables = CacheTables(
            manifest.cache.groups,
            max_num_seqs,
            manifest.args.max_pages,
            PagePool(self.pages),
            retention,
            PagePool(states) if (states := demand.states(manifest)) else None,
        )
        self.program = Program(runner, plans, tables, manifest.vocab)
        self._scheduler = Scheduler(limits, tables)
        self.engine = Engine(manifest, self._scheduler, self.program)
        self._requests = 0
        self.watermark_requests: Counter[Marking] = Counter()

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
    ) -> list[Output]:
        """Generate for every prompt (text, or token ids), batched; outputs in order of prompts.

        `priority` counts where the policy is "priority": the lowest number is served first. Only
        requests of equal `cache_salt` share pages with each other.

        Where `n` is more than 1, the choices of a prompt follow each other; their seeds are seed,
        seed + 1, …
        A prompt whose logits are NaN has an output with `error`; the others have theirs. Raises
        RequestError for a prompt that cannot be served, before anything runs.
        """
        prompts = read_prompts(prompts)
        params = SamplingParams() if params is None else params
        wishes = read_each(params, len(prompts), "sampling parameters")
        ranks = read_each(priority, len(prompts), "priorities")
        generations = [
            generation
            for prompt, wanted, rank in zip(prompts, wishes, ranks, strict=True)
            for generation in self.choices(prompt, wanted, priority=rank, cache_salt=cache_salt)
        ]
        by_request = {generation.request: generation for generation in generations}
        for generation in generations:
            generation.begin()
        try:
            while not all(generation.is_finished for generation in generations):
                for request in self.engine.step():
                    if request in by_request:  # else a stream's, which will see to it
                        by_request[request].advance()
        finally:
            for generation in generations:
                generation.abort("error")
                generation.finish()
        self.engine.drain()
        return [generation.output() for generation in generations]

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Generation:
        """Return a generation to iterate over: it yields text as it becomes certain.

        Raises RequestError for a prompt that cannot be served.
        """
        if read_params(params).n != 1:
            raise RequestError(f"n: a stream has one choice, is {params.n}; use generate")
        (generation,) = self.choices(prompt, params, priority=priority, cache_salt=cache_salt)
        return generation

    def choices(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        decoder: Decoder | None = None,
    ) -> list[Generation]:
        """Return one generation for each of the n choices of a prompt.

        Their seeds are seed, seed + 1, … `decoder` None: the tokenizer. Raises RequestError.
        """
        generations = [
            self._generation(prompt, choice, index, decoder)
            for index, choice in enumerate(_choices(read_params(params)))
        ]
        for generation in generations:
            request = generation.request
            request.priority, request.cache_salt = check_rank(priority), check_salt(cache_salt)
        return generations

    def _generation(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        index: int,
        decoder: Decoder | None = None,
    ) -> Generation:
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt, add_special_tokens=True)
        if not self.has_tokenizer:
            if params.stop or params.bad_words:
                raise RequestError(
                    "stop strings and bad words need a tokenizer; use stop_token_ids, bad_word_ids"
                )
            return Generation(self.engine, self._request(prompt, params), None, index)
        request = self._request(prompt, with_bad_word_ids(params, self.tokenizer))
        cut, special = params.include_stop_str_in_output, params.skip_special_tokens
        text = GrowingText(decoder or self.tokenizer, prompt, params.stop, cut, special)
        return Generation(self.engine, request, text, index)

    def request(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Request:
        """Return a request for one choice, of ids alone: whoever queues it makes the text.

        Raises RequestError, also for what only text can show (stop strings, bad words).
        """
        if read_params(params).n != 1 or params.stop or params.bad_words:
            raise RequestError("a request of ids has one choice, no stop strings and no bad words")
        request = self._request(ids, params)
        request.priority, request.cache_salt = check_rank(priority), check_salt(cache_salt)
        return request

    def logits(
        self, prompt_ids: Sequence[int], fed_ids: Sequence[int] = ()
    ) -> tuple[Logits, Logits]:
        """Return logits after each prompt token [P, V] and after each fed token [N, V].

        The prompt runs in chunks of `chunk_tokens` (or as the budget allows), fed tokens one by
        one, as in decoding.
        """
        vocab = self.manifest.vocab
        prompt = read_ids(prompt_ids, vocab, "prompt_ids")
        fed = read_ids(fed_ids, vocab, "fed_ids", least=0)
        result = self.score([Case(tuple(prompt), tuple(fed))])[0]
        return result.prefill_logits, result.decode_logits

    def score(self, cases: Sequence[Case]) -> list[Score]:
        """Return the logits of every position of every case, all cases in one batch."""
        self.engine.drain()
        return score(self._scheduler, self.program, self.manifest.vocab, cases)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the prompt ids of a conversation. Raises TextError without a chat template."""
        if self.chat_template is None:
            raise TextError(f"{self.folder}: no chat template; give the prompt as plain text")
        text = self.chat_template.render(messages)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def reset_prefix_cache(self) -> None:
        """Let no request find what earlier ones have computed: weights have changed."""
        self._scheduler.cache.forget()

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The checkpoint's tokenizer. Raises TextError where it has none."""
        if self.folder is None:
            raise TextError("made-up weights have no tokenizer; give the prompt as token ids")
        return TextTokenizer(self.folder)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end a text; generation_config.json of the weights wins over the build."""
        return self.defaults.eos_token_ids or self.manifest.model.eos_token_ids

    @cached_property
    def grammars(self) -> Grammars:
        """Compiled grammars of structured output. Raises TextError without a tokenizer."""
        if self.folder is None or not self.has_tokenizer:
            raise TextError("structured output needs a tokenizer; these weights have none")
        return Grammars(self.folder / TOKENIZER, self.manifest.vocab, self.end_ids)

    def prepare_grammars(self) -> None:
        """Do ahead what the first structured request would wait for; nothing where none can be."""
        with contextlib.suppress(RequestError, TextError):
            self.grammars.prepare()

    @property
    def has_tokenizer(self) -> bool:
        """Whether text can be encoded and decoded."""
        return self.folder is not None and (self.folder / TOKENIZER).is_file()

    @cached_property
    def chat_template(self) -> "ChatTemplate | None":
        """The checkpoint's chat template, None where it has none."""
        return read_chat_template(self.folder) if self.folder else None

    @cached_property
    def defaults(self) -> GenerationDefaults:
        """The checkpoint's generation defaults."""
        return read_generation_defaults(self.folder) if self.folder else GenerationDefaults()

    def _request(self, ids: Sequence[int], params: SamplingParams) -> Request:
        limit, vocab = self.limits.max_model_len, self.manifest.vocab
        ids = read_ids(ids, vocab)
        if len(ids) >= limit:
            raise RequestError(
                f"prompt of {len(ids)} tokens leaves no room in max_model_len {limit}; "
                f"the model allows up to {self.manifest.max_sequence_tokens}"
            )
        marked = marking(params, self._watermark)
        mark = self._watermark if marked is Marking.WATERMARKED else None
        rules = self.manifest.rules
        has_guides = rules is not None and any(field.name == "allowed" for field in rules.fields)
        check_demands(params, vocab, rules is not None, mark is not None, has_guides)
        guide = None if params.structured is None else self.grammars.guide(params.structured)
        stops = (*params.stop_token_ids, *(() if params.ignore_eos else self.end_ids))
        most = limit if params.max_tokens is None else len(ids) + params.max_tokens
        self._requests += 1
        self.watermark_requests[marked] += 1
        return Request(
            id=self._requests,
            tokens=ids,
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            stop_ids=frozenset(stops),
            length_limit=min(most, limit),
            needs_all_rows=params.prompt_logprobs is not None,
            mark=mark,
            guide=guide,
        )


def _choices(params: SamplingParams) -> list[SamplingParams]:
    """Return the parameters of every choice of a prompt."""
    if params.n == 1:
        return [params]
    seed = secrets.randbits(63) if params.seed is None else params.seed
    return [params.choice(i, seed) for i in range(params.n)]
