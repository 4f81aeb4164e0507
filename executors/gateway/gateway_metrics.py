"""The gateway's own metrics, in one documented table.

Owns names and buckets. Milliseconds here are real ones: they tell what this process costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from executors.gateway.wire.http_server import HttpServer
from topics.sketch import bucket_of, quantile_ms

_REAL_MS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 25, 50, 100, 250, 500, 1000, 5000)

SCORER_FAILURES = ("timeout", "connection", "status", "invalid", "busy", "resting")


class Metrics:
    """Every metric of one gateway process, in a registry of its own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"shoal:gateway_{name}", what, labels, registry=registry)

        self.requests = counter("requests", "Requests ended, by how", "model", "ending")
        self.unknown = counter("unknown_model", "Requests for a model without routes")
        self.bad = counter("bad_requests", "Requests that could not be read (4xx)")
        self.retries = counter("retries", "Requests sent to another instance", "model")
        self.recomputed = counter(
            "recomputed", "Prompts computed again where the KV could not be handed over", "model"
        )
        self.broken = counter("broken_streams", "Streams broken off after their start", "model")
        self.aborts = counter("client_aborts", "Requests whose client went away", "model")
        self.ejections = counter("ejections", "Instances taken out after a failure", "model")
        self.readmissions = counter("readmissions", "Instances taken back by a probe", "model")
        self.stale = counter("stale_routes", "Routes refused: older leader or generation")
        self.unbacked = counter("unbacked_routes", "Routes whose leader no claim vouches for")
        self.denied = counter("denied", "Requests refused for their key: 401, 403 and its 429")
        self.scored = counter(
            "scored", "Requests for a name of several models, by where the score is from",
            "model", "source",
        )  # fmt: skip
        self.fallbacks = counter(
            "fallbacks", "Requests that another model answered for want of room", "model", "by"
        )
        self.busy = counter("overloaded", "Requests refused because bodies took too much memory")
        self.bad_loads = counter("bad_loads", "Messages of load feeds that could not be read")
        self.keys_errors = counter("keys_errors", "Times the file of API keys could not be used")
        self.dropped = counter("telemetry_dropped", "Telemetry lost: the broker was away too long")
        self.state_errors = counter("state_errors", "Times the routes could not be saved")
        self.waiting = Gauge(
            "shoal:gateway_waiting", "Requests that wait for room", ["model"], registry=registry
        )
        self.in_flight = Gauge(
            "shoal:gateway_in_flight", "Requests now", ["model"], registry=registry
        )
        self.body_bytes = Gauge(
            "shoal:gateway_body_bytes", "Bytes of request bodies held now", registry=registry
        )
        self.buffered = Gauge(
            "shoal:gateway_telemetry_buffered", "Telemetry not sent yet", registry=registry
        )
        self.ejected = Gauge("shoal:gateway_ejected", "Instances out", ["model"], registry=registry)
        self._overhead = Histogram(
            "shoal:gateway_overhead_ms",
            "Real ms of a request spent here, not waiting for an engine, the client or room",
            buckets=_REAL_MS,
            registry=registry,
        )
        self._lag = Histogram(
            "shoal:gateway_loop_lag_ms",
            "Real ms by which the event loop woke up late",
            buckets=_REAL_MS,
            registry=registry,
        )
        self._quantiles = Gauge(
            "shoal:gateway_overhead_quantile_ms",
            "Quantiles of shoal:gateway_overhead_ms since the start, within 2%",
            ["quantile"],
            registry=registry,
        )
        self._sketch: dict[int, int] = {}
        self._ended: dict[tuple[str, str], Counter] = {}

    def watch(self, server: HttpServer) -> None:
        """Show what `server` counts of clients that broke its limits."""
        for name, what, count in (
            ("cut", "Clients cut off because they did not read", "slow_readers_cut"),
            ("late", "Requests that did not arrive in time", "requests_timed_out"),
            ("refused", "Requests that exceeded a limit", "requests_over_limit"),
        ):
            self.show(f"clients_{name}", what, partial(getattr, server, count))

    def watch_scorer(self, failures: Mapping[str, int]) -> None:
        """Show why the scorer gave no score."""
        for why in SCORER_FAILURES:
            self.show(
                f"scorer_{why}", f"Scores that were not had: {why}", partial(_at, failures, why)
            )

    def show(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A figure that somebody else counts."""
        gauge = Gauge(f"shoal:gateway_{name}", what, registry=self._registry)
        gauge.set_function(value)

    def ended(self, model: str, ending: str) -> None:
        """A request has ended."""
        known = self._ended.get((model, ending))
        if known is None:
            known = self._ended[model, ending] = self.requests.labels(model, str(ending))
        known.inc()

    def overhead(self, real_ms: float) -> None:
        """One request cost so much."""
        self._overhead.observe(real_ms)
        bucket = bucket_of(real_ms)
        self._sketch[bucket] = self._sketch.get(bucket, 0) + 1

    def lag(self, real_ms: float) -> None:
        """The loop woke up so late."""
        self._lag.observe(max(0.0, real_ms))

    def exposition(self) -> bytes:
        """Everything in Prometheus' text form."""
        for q in (0.5, 0.99):
            value = quantile_ms(self._sketch, q)
            if value is not None:
                self._quantiles.labels(f"{q:g}").set(value)
        return generate_latest(self._registry)


def _at(counts: Mapping[str, int], name: str) -> float:
    return counts.get(name, 0)
