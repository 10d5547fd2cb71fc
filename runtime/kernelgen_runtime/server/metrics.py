"""Owns the names under which dashboards know the numbers, and their Prometheus text."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from .admission import Admission
from .meters import Histogram, Meters, cache_share
from .wire import Facts, Load

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISHED = ("stop", "length", "abort", "error", "repetition")
LABELS = ("model_name", "engine")


class Numbers(Collector):
    """All metrics of a server, made when somebody asks."""

    def __init__(self, prefix: str, model: str, meters: Meters, admission: Admission) -> None:
        self.facts: Facts | None = None
        self.load = Load()
        self._prefix, self._labels = prefix, (model, "0")
        self._meters, self._admission = meters, admission
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Return them in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is known before it is collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        load, pages = self.load, self.facts.pages if self.facts else 0
        for name, value, text in (
            ("num_requests_running", load.running, "Requests that have a slot."),
            ("num_requests_waiting", load.waiting, "Requests that wait for one."),
            ("kv_cache_usage_perc", cache_share(load, pages), "Cache in use, 1 is all of it."),
            ("num_requests_unfinished", self._admission.requests, "Choices under way."),
        ):
            gauge = GaugeMetricFamily(self._name(name), text, labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        reasons = GaugeMetricFamily(
            self._name("num_requests_waiting_by_reason"),
            "Requests that wait, by what for.",
            labels=(*LABELS, "reason"),
        )
        reasons.add_metric((*self._labels, "capacity"), load.waiting)
        yield reasons
        if self.facts is not None:
            yield self._cache_info(self.facts)

    def _cache_info(self, facts: Facts) -> Metric:
        info = {"block_size": facts.page_tokens, "num_gpu_blocks": facts.pages,
                "cache_bytes": facts.cache_bytes, "max_model_len": facts.max_model_len}  # fmt: skip
        gauge = GaugeMetricFamily(
            self._name("cache_config_info"), "How the cache is made.", labels=("engine", *info)
        )
        gauge.add_metric(("0", *map(str, info.values())), 1.0)
        return gauge

    def _counters(self) -> Iterator[Metric]:
        meters, load = self._meters, self.load
        for name, value, text in (
            ("prefix_cache_queries", load.prefix_queries, "Prompt tokens that were looked up."),
            ("prefix_cache_hits", load.prefix_hits, "Prompt tokens that were found."),
            ("num_preemptions", load.preemptions, "Requests that lost their pages."),
            ("prompt_tokens", meters.prompt_tokens, "Tokens of prompts."),
            ("prompt_tokens_cached", meters.cached_tokens, "Tokens of prompts that were known."),
            ("generation_tokens", meters.generated_tokens, "Tokens that were generated."),
            ("corrupted_requests", meters.corrupted, "Requests that ended with an error."),
            ("failed_steps", load.failed_steps, "Steps that gave no result."),
        ):
            counter = CounterMetricFamily(self._name(name), text, labels=LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        finished = {reason: meters.finished[reason] for reason in FINISHED}
        sources = {
            "local_compute": meters.prompt_tokens - meters.cached_tokens,
            "local_cache_hit": meters.cached_tokens,
        }
        for name, label, values, text in (
            ("request_success", "finished_reason", finished, "Choices that ended."),
            ("admission_rejections", "reason", self._admission.rejected, "Requests refused."),
            ("watermark_requests", "status", load.marked, "Requests by their watermark."),
            ("prompt_tokens_by_source", "source", sources, "Prompt tokens by origin."),
            ("prefix_cache_group_hits", "group", load.group_hits, "Found, were a group alone."),
        ):
            counter = CounterMetricFamily(self._name(name), text, labels=(*LABELS, label))
            for key, value in values.items():
                counter.add_metric((*self._labels, key), value)
            yield counter

    def _histograms(self) -> Iterator[Metric]:
        m = self._meters
        for name, histogram, text in (
            ("time_to_first_token_seconds", m.first_token, "Arrival to first token."),
            ("inter_token_latency_seconds", m.gap, "Between two tokens."),
            ("request_time_per_output_token_seconds", m.per_token, "Mean of a request."),
            ("e2e_request_latency_seconds", m.latency, "Arrival to last token."),
            ("request_queue_time_seconds", m.queued, "Arrival to first step."),
            ("request_inference_time_seconds", m.inference, "First step to last token."),
            ("request_prefill_time_seconds", m.prefill, "First step to first token."),
            ("request_decode_time_seconds", m.decode, "First token to last."),
            ("request_prompt_tokens", m.prompt_tokens_of, "Tokens of a prompt."),
            ("request_generation_tokens", m.tokens_of, "Tokens of a choice."),
            ("request_params_n", m.n_of, "Choices asked."),
            ("request_params_max_tokens", m.asked_tokens_of, "max_tokens asked."),
            ("request_max_num_generation_tokens", m.most_tokens_of, "Most of a choice."),
            ("request_prefill_kv_computed_tokens", m.computed_of, "Prompt tokens computed."),
            ("iteration_tokens_total", m.iteration, "Tokens that one step gave."),
        ):
            family = HistogramMetricFamily(self._name(name), text, labels=LABELS)
            family.add_metric(self._labels, _buckets(histogram), histogram.total)
            yield family

    def _name(self, name: str) -> str:
        return f"{self._prefix}:{name}"


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    found, seen = [], 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        seen += count
        found.append(("+Inf" if bound is None else str(bound), float(seen)))
    return found
