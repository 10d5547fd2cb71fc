"""Owns the numbers that a server is judged by: counted where they arise, read by whoever asks."""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence

from .choice import Choice
from .job import Job
from .wire import Load, Stepped

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
          10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_GAP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
        2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
            120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
_TOKENS = tuple(float(step * 10**power) for power in range(7) for step in (1, 2, 5))
_FEW = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 128.0)
RATE_SECONDS = 10.0


class Histogram:
    """Counts of values by the smallest bound that is not below them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return the bound below which `share` of the values are, None without values."""
        count = self.count
        if not count:
            return None
        seen = 0
        for bound, here in zip((*self.bounds, self.bounds[-1]), self.counts, strict=True):
            seen += here
            if seen >= share * count:
                return bound
        return self.bounds[-1]


class Meters:
    """Everything counted in the API process; what the engine counts is in its `Load`."""

    def __init__(self) -> None:
        self.first_token, self.gap = Histogram(_FIRST), Histogram(_GAP)
        self.per_token, self.latency = Histogram(_GAP), Histogram(_LATENCY)
        self.queued, self.inference = Histogram(_LATENCY), Histogram(_LATENCY)
        self.prefill, self.decode = Histogram(_LATENCY), Histogram(_LATENCY)
        self.prompt_tokens_of, self.tokens_of = Histogram(_TOKENS), Histogram(_TOKENS)
        self.most_tokens_of, self.computed_of = Histogram(_TOKENS), Histogram(_TOKENS)
        self.asked_tokens_of, self.iteration = Histogram(_TOKENS), Histogram(_TOKENS)
        self.n_of = Histogram(_FEW)
        self.finished: Counter[str] = Counter()
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = self.corrupted = 0
        self._recent: deque[tuple[float, int]] = deque()

    def stepped(self, stepped: Stepped) -> None:
        """Count what one step gave."""
        tokens = sum(len(update.ids) for update in stepped.updates)
        if not tokens:
            return
        self.generated_tokens += tokens
        self.iteration.observe(tokens)
        recent = self._recent
        recent.append((stepped.at, tokens))
        while recent[0][0] < stepped.at - RATE_SECONDS:
            recent.popleft()

    def tokens_per_second(self, now: float) -> float:
        """Return the rate of the last ten seconds."""
        tokens = sum(count for at, count in self._recent if at >= now - RATE_SECONDS)
        return tokens / RATE_SECONDS

    def asked(self, job: Job) -> None:
        """Count a request that was taken."""
        params = job.ask.params
        self.prompt_tokens += job.prompt_tokens
        self.n_of.observe(params.n)
        for prompt in job.ask.prompts:
            self.prompt_tokens_of.observe(len(prompt.ids))
        if params.max_tokens is not None:
            self.asked_tokens_of.observe(params.max_tokens)

    def ended(self, job: Job, choice: Choice) -> None:
        """Count a choice that has ended."""
        reason = choice.finish_reason or "abort"
        self.finished[reason] += 1
        self.corrupted += reason == "error"
        tokens = len(choice.ids)
        self.tokens_of.observe(tokens)
        self.most_tokens_of.observe(tokens)
        first, last = choice.first, choice.last_at
        if first is None:
            return
        self.cached_tokens += first.cached_tokens
        prompt = len(job.ask.prompts[choice.prompt].ids)
        self.computed_of.observe(prompt - first.cached_tokens)
        self.first_token.observe(max(0.0, first.at - job.arrived))
        self.queued.observe(max(0.0, first.scheduled - job.arrived))
        self.prefill.observe(max(0.0, first.at - first.scheduled))
        self.decode.observe(max(0.0, last - first.at))
        self.inference.observe(max(0.0, last - first.scheduled))
        self.latency.observe(max(0.0, last - job.arrived))
        if tokens > 1:
            self.per_token.observe(max(0.0, last - first.at) / (tokens - 1))


def cache_share(load: Load, pages: int) -> float:
    """Return the share of the cache that is in use, 0 to 1."""
    return load.used_pages / pages if pages else 0.0
