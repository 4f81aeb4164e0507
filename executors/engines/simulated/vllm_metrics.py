"""Metrics of a simulated engine, under vLLM's names, as Prometheus text.

Times are domain seconds, except `shoal:sim_late_ms`, which is in real milliseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from topics.sketch import bucket_of, quantile_ms

_LOW_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
_TTFT_S: tuple[float, ...] = (*_LOW_S, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_SHORT_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
_TOKEN_S: tuple[float, ...] = (*_SHORT_S, 10.0, 20.0, 40.0, 80.0)
_LONG_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_REQUEST_S: tuple[float, ...] = (*_LONG_S, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)


class Histogram:
    """A Prometheus histogram."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add `times` observations of `value`."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The histogram in Prometheus' text format."""
        seen = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {seen}'
        yield f"{name}_sum{{{labels}}} {self._sum!r}"
        yield f"{name}_count{{{labels}}} {seen}"


class Lateness:
    """Real ms from the simulated time of an event until its bytes are written: the overhead of the
    simulation."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self._sketch: dict[int, int] = {}

    def observe(self, late_ms: float) -> None:
        """Add a first token or an end that was written `late_ms` after its simulated time."""
        late_ms = max(0.0, late_ms)
        self.count += 1
        self.sum_ms += late_ms
        bucket = bucket_of(late_ms)
        self._sketch[bucket] = self._sketch.get(bucket, 0) + 1

    def lines(self, labels: str) -> Iterable[str]:
        """A summary with p50 and p99 (within 2%) in Prometheus' text format."""
        for q in (0.5, 0.99):
            value = quantile_ms(self._sketch, q)
            if value is not None:
                yield f'shoal:sim_late_ms{{{labels},quantile="{q}"}} {value!r}'
        yield f"shoal:sim_late_ms_sum{{{labels}}} {self.sum_ms!r}"
        yield f"shoal:sim_late_ms_count{{{labels}}} {self.count}"


@dataclass(frozen=True, slots=True)
class Gauges:
    """State of the batching machine at a scrape. cache_queries, cache_hits: prompt tokens that were
    looked up in the prefix cache, and those that it held. blocks: size of the KV cache in blocks of
    block_tokens, 0 without a prefix cache."""

    running: int
    waiting: int
    deferred: int
    kv_usage: float
    held: int
    cache_queries: int = 0
    cache_hits: int = 0
    blocks: int = 0
    block_tokens: int = 0


@dataclass(slots=True)
class Metrics:
    """All counters since the start. asleep: the sleep level, 0 = awake."""

    prompt_tokens: int = 0
    transferred_tokens: int = 0
    generation_tokens: int = 0
    kv_expired: int = 0
    kv_failed: int = 0
    kv_late: int = 0
    asleep: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )
    ttft: Histogram = field(default_factory=lambda: Histogram(_TTFT_S))
    inter_token: Histogram = field(default_factory=lambda: Histogram(_TOKEN_S))
    per_output_token: Histogram = field(default_factory=lambda: Histogram(_TOKEN_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(_REQUEST_S))
    late: Lateness = field(default_factory=Lateness)

    def text(self, model: str, gauges: Gauges, preemptions: int) -> bytes:
        """The text of /metrics."""
        labels = f'engine="0",model_name="{model}"'
        out: list[str] = []

        def put(kind: str, name: str, values: Mapping[str, float]) -> None:
            out.append(f"# TYPE {name} {kind}")
            out.extend(f"{name}{{{labels}{extra}}} {value!r}" for extra, value in values.items())

        waiting = gauges.waiting + gauges.deferred
        put("gauge", "vllm:num_requests_running", {"": gauges.running})
        put("gauge", "vllm:num_requests_waiting", {"": waiting})
        put(
            "gauge",
            "vllm:num_requests_waiting_by_reason",
            {',reason="capacity"': gauges.waiting, ',reason="deferred"': gauges.deferred},
        )
        put("gauge", "vllm:kv_cache_usage_perc", {"": gauges.kv_usage})
        put(
            "gauge",
            "vllm:engine_sleep_state",
            {
                f',sleep_state="{state}"': int(self.asleep == level)
                for level, state in enumerate(("awake", "weights_offloaded", "discard_all"))
            },
        )
        if gauges.blocks:
            info = f',block_size="{gauges.block_tokens}",num_gpu_blocks="{gauges.blocks}"'
            put("gauge", "vllm:cache_config_info", {info: 1})
        put("gauge", "shoal:sim_held_kv_requests", {"": gauges.held})
        put("counter", "vllm:num_preemptions_total", {"": preemptions})
        put("counter", "vllm:prompt_tokens_total", {"": self.prompt_tokens})
        put("counter", "vllm:generation_tokens_total", {"": self.generation_tokens})
        put(
            "counter",
            "vllm:prompt_tokens_by_source_total",
            {
                ',source="local_compute"': self.prompt_tokens - self.transferred_tokens,
                ',source="external_kv_transfer"': self.transferred_tokens,
            },
        )
        put("counter", "vllm:prefix_cache_queries_total", {"": gauges.cache_queries})
        put("counter", "vllm:prefix_cache_hits_total", {"": gauges.cache_hits})
        put("counter", "vllm:external_prefix_cache_hits_total", {"": self.transferred_tokens})
        put("counter", "vllm:external_prefix_cache_queries_total", {"": self.prompt_tokens})
        put("counter", "vllm:nixl_num_kv_expired_reqs_total", {"": self.kv_expired})
        put("counter", "vllm:nixl_num_failed_transfers_total", {"": self.kv_failed})
        put("counter", "vllm:nixl_num_notifications_after_expiry_total", {"": self.kv_late})
        put(
            "counter",
            "vllm:request_success_total",
            {f',finished_reason="{reason}"': n for reason, n in self.finished.items()},
        )
        for name, histogram in (
            ("vllm:time_to_first_token_seconds", self.ttft),
            ("vllm:inter_token_latency_seconds", self.inter_token),
            ("vllm:request_time_per_output_token_seconds", self.per_output_token),
            ("vllm:e2e_request_latency_seconds", self.e2e),
        ):
            out.append(f"# TYPE {name} histogram")
            out.extend(histogram.lines(name, labels))
        out.append("# TYPE shoal:sim_late_ms summary")
        out.extend(self.late.lines(labels))
        return ("\n".join(out) + "\n").encode()
