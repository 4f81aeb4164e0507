"""All Prometheus metrics of a gateway process. Milliseconds are real time, not domain time, because
they measure the cost of this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from executors.gateway.wire.http_server import HttpServer
from topics.sketch import bucket_of, quantile_ms

_REAL_MS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 25, 50, 100, 250, 500, 1000, 5000)

SCORER_FAILURES = ("timeout", "connection", "status", "invalid", "busy", "resting")


class GatewayMetrics:
    """The metrics of one gateway process, in a registry of its own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        build = Gauge("shoal_build_info", "Version of Shoal", ["version"], registry=registry)
        build.labels(version("shoal")).set(1.0)
        self._by_model: list[Counter | Gauge] = []
        self._adapters: dict[str, set[str]] = {}  # the adapters with series, by model

        def counter(name: str, what: str, *labels: str) -> Counter:
            made = Counter(f"shoal:gateway_{name}", what, labels, registry=registry)
            self._by_model += [made] if "model" in labels else []
            return made

        self.requests = counter("requests", "Ended requests by ending", "model", "ending")
        self.unknown_model = counter("unknown_model", "Requests for a model without routes")
        self.bad_requests = counter("bad_requests", "Requests refused as invalid (4xx)")
        self.adapter_requests = counter(
            "adapter_requests",
            "Requests for a LoRA adapter, counted at arrival",
            "model",
            "adapter",
        )
        self.adapters_not_loaded = counter(
            "adapters_not_loaded",
            "Attempts that failed because the instance lacks the adapter",
            "model",
            "adapter",
        )
        self.retries = counter("retries", "Requests sent to another instance", "model")
        self.recomputed = counter(
            "recomputed", "Prompts computed again because the KV could not be handed over", "model"
        )
        self.broken_streams = counter(
            "broken_streams", "Streams that failed after their start", "model"
        )
        self.client_aborts = counter("client_aborts", "Requests whose client left", "model")
        self.ejections = counter("ejections", "Instances ejected after a failure", "model")
        self.readmissions = counter("readmissions", "Instances readmitted after a probe", "model")
        self.stale_routes = counter(
            "stale_routes", "Refused routes of an older leader or generation"
        )
        self.unbacked_routes = counter(
            "unbacked_routes", "Routes that wait because their leader token is unknown"
        )
        self.denied = counter("denied", "Requests refused because of their API key: 401, 403, 429")
        self.scored = counter(
            "scored", "Requests for a service of several models, by source of the score",
            "model", "source",
        )  # fmt: skip
        self.fallbacks = counter(
            "fallbacks", "Requests that another model answered for lack of capacity", "model", "by"
        )
        self.overloaded = counter(
            "overloaded", "Requests refused because request bodies used too much memory"
        )
        self.bad_loads = counter("bad_loads", "Invalid messages of load feeds")
        self.keys_errors = counter("keys_errors", "Failed reads of the file of API keys")
        self.telemetry_dropped = counter(
            "telemetry_dropped", "Telemetry records lost because the broker was away too long"
        )
        self.state_errors = counter(
            "state_errors", "Failed reads and writes of saved routes and telemetry"
        )
        self.waiting = Gauge(
            "shoal:gateway_waiting", "Requests waiting for capacity", ["model"], registry=registry
        )
        self.in_flight = Gauge(
            "shoal:gateway_in_flight", "Requests in flight", ["model"], registry=registry
        )
        self.body_bytes = Gauge(
            "shoal:gateway_body_bytes", "Bytes of request bodies in memory", registry=registry
        )
        self.telemetry_buffered = Gauge(
            "shoal:gateway_telemetry_buffered", "Telemetry records not sent yet", registry=registry
        )
        self.ejected = Gauge(
            "shoal:gateway_ejected", "Instances ejected now", ["model"], registry=registry
        )
        self._overhead = Histogram(
            "shoal:gateway_overhead_ms",
            "Milliseconds of the gateway's own work for a request",
            buckets=_REAL_MS,
            registry=registry,
        )
        self._lag = Histogram(
            "shoal:gateway_loop_lag_ms",
            "Milliseconds by which the event loop wakes up late",
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
        self._request_counters: dict[tuple[str, str], Counter] = {}
        self._by_model += [self.waiting, self.in_flight, self.ejected]

    def watch_server(self, server: HttpServer) -> None:
        """Expose the counters of `server` for clients that exceeded its limits."""
        for name, what, count in (
            ("cut", "Clients cut off because they did not read", "slow_readers_cut"),
            ("late", "Requests that did not arrive in time", "requests_timed_out"),
            ("refused", "Requests that exceeded a limit", "requests_over_limit"),
        ):
            self.add_gauge(f"clients_{name}", what, partial(getattr, server, count))

    def watch_scorer(self, failures: Mapping[str, int]) -> None:
        """Expose the scorer's failures by reason."""
        for why in SCORER_FAILURES:
            self.add_gauge(
                f"scorer_{why}",
                f"Requests to the scorer without a score: {why}",
                partial(_count_of, failures, why),
            )

    def add_gauge(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Add a gauge that reads `value` when it is scraped."""
        gauge = Gauge(f"shoal:gateway_{name}", what, registry=self._registry)
        gauge.set_function(value)

    def forget(self, model: str) -> None:
        """Remove the series of a model that is no longer declared."""
        for metric in self._by_model:
            metric.remove_by_labels({"model": model})
        for key in [key for key in self._request_counters if key[0] == model]:
            del self._request_counters[key]

        self._adapters.pop(model, None)

    def count_adapter(self, counter: Counter, model: str, adapter: str) -> None:
        """Increase `counter`, which has the labels `model` and `adapter`."""
        self._adapters.setdefault(model, set()).add(adapter)
        counter.labels(model, adapter).inc()

    def keep_adapters(self, model: str, declared: Collection[str]) -> None:
        """Remove the series of adapters of `model` that are not in `declared`."""
        counted = self._adapters.get(model)
        if not counted or counted.issubset(declared):
            return
        for adapter in counted.difference(declared):
            for metric in (self.adapter_requests, self.adapters_not_loaded):
                metric.remove_by_labels({"model": model, "adapter": adapter})
        counted.intersection_update(declared)

    def count_end(self, model: str, ending: str) -> None:
        """Count the end of a request."""
        counter = self._request_counters.get((model, ending))
        if counter is None:
            counter = self._request_counters[model, ending] = self.requests.labels(
                model, str(ending)
            )
        counter.inc()

    def observe_overhead(self, real_ms: float) -> None:
        """Record the real ms that one request cost this process."""
        self._overhead.observe(real_ms)
        bucket = bucket_of(real_ms)
        self._sketch[bucket] = self._sketch.get(bucket, 0) + 1

    def observe_loop_lag(self, real_ms: float) -> None:
        """Record the real ms by which the event loop woke up late."""
        self._lag.observe(max(0.0, real_ms))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        for q in (0.5, 0.99):
            value = quantile_ms(self._sketch, q)
            if value is not None:
                self._quantiles.labels(f"{q:g}").set(value)
        return generate_latest(self._registry)


def _count_of(counts: Mapping[str, int], name: str) -> float:
    return counts.get(name, 0)
