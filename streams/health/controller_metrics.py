"""Controller metrics in Prometheus' text form, computed at each scrape.

All names come from the table of `metric_names`. Autoscalers act on desired replicas, so a series
never disappears. Its value is 0 if no replica is desired or its model is no longer declared. It
keeps its last value while the model is paused or released, or keeps running although it is
undeclared. A standby exports no desired replicas, because autoscalers would otherwise see two
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from autoscaler.domain.condition_level import Level
from autoscaler.domain.reason import Reason
from streams.health.controller_facts import RELEASE, Facts
from streams.health.metric_names import BY_NAME, Name
from streams.loop.tick_loop import TickResult
from topics.controls import ALL_MODELS

_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

Sample = tuple[tuple[str, ...], float]
Series = tuple[str, str, str, str]
Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily


class Metrics(Collector):
    """Observes a loop through `tick`; `text` answers a scrape. lost: ticks missing from the
    decision log. alerts: counts by result. behind: unread records, by topic."""

    def __init__(
        self,
        facts: Facts,
        lost: Callable[[], int],
        alerts: Callable[[], Mapping[str, int]],
        behind: Callable[[], Mapping[str, int]],
    ) -> None:
        self._facts = facts
        self._behind = behind
        self._lost = lost
        self._alerts = alerts
        self._within = [0] * (len(_BUCKETS_S) + 1)
        self._cpu_s = 0.0
        self._desired: dict[Series, int] = {}
        self._token = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def tick(self, done: TickResult) -> None:
        """Count one tick."""
        self._within[next((k for k, s in enumerate(_BUCKETS_S) if done.cpu_s <= s), -1)] += 1
        self._cpu_s += done.cpu_s
        if (
            done.after.term.leader_token != self._token
        ):  # Another leader may have planned meanwhile.
            self._token = done.after.term.leader_token
            self._desired.clear()

    def text(self) -> bytes:
        """All metrics in Prometheus' text form."""
        return bytes(generate_latest(self._registry))

    def describe(self) -> Iterable[Family]:
        """No families, because all samples are computed at the scrape."""
        return ()

    def collect(self) -> Iterator[Family]:
        """All metric families that have samples now."""
        for name, samples in self._samples():
            metric = BY_NAME[name]
            kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
            family = kind(name, metric.meaning, labels=metric.labels)
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family
        yield self._ticks()

    def _ticks(self) -> HistogramMetricFamily:
        total, buckets = 0, []
        for limit, count in zip((*map(str, _BUCKETS_S), "+Inf"), self._within, strict=True):
            total += count
            buckets.append((limit, float(total)))
        family = HistogramMetricFamily(
            "shoal_tick_cpu_seconds", BY_NAME["shoal_tick_cpu_seconds"].meaning
        )
        family.add_metric((), buckets, self._cpu_s)
        return family

    def _samples(self) -> Iterator[tuple[Name, Iterable[Sample]]]:
        facts, loop = self._facts, self._facts.loop
        leads, token, _ = facts.leader()
        publisher, windows = loop.ports.publisher, loop.windows.counters
        yield "shoal_build_info", [((RELEASE,), 1.0)]
        yield "shoal_leader", [((), float(leads))]
        yield "shoal_leader_token", [((), float(token))]
        yield "shoal_tick_age_seconds", [((), facts.tick_age_s())]
        yield "shoal_ticks_total", [((), float(loop.ticks.count))]
        yield "shoal_ticks_skipped_total", [((), float(loop.ticks.skipped))]
        yield "shoal_decisions_total", [((k,), float(n)) for k, n in sorted(facts.kinds.items())]
        yield "shoal_solver_restarts_total", [((), float(loop.ports.solver.killed))]
        yield "shoal_records_sent_total", [((), float(getattr(publisher, "sent", 0)))]
        yield "shoal_records_dropped_total", [((), float(getattr(publisher, "dropped", 0)))]
        results = ("applied", "duplicate", "late", "ahead")
        yield (
            "shoal_telemetry_records_total",
            [((result,), float(getattr(windows, result))) for result in results],
        )
        yield "shoal_lag_records", [((t,), float(n)) for t, n in sorted(self._behind().items())]
        yield "shoal_window_workers_late_seconds", [((), facts.merging().late_s)]
        yield "shoal_dead_letters_total", [((), float(loop.latest.dropped.buried))]
        undeclared = sorted(loop.latest.dropped.undeclared.items())
        yield "shoal_undeclared_records_total", [((t,), float(n)) for t, n in undeclared]
        yield "shoal_refused_declarations", [((), float(len(loop.latest.declared.refused)))]
        refused = sorted(facts.refused().items())
        yield (
            "shoal_refused_records_total",
            [((topic, why.name.lower()), float(n)) for (topic, why), n in refused],
        )
        yield "shoal_decision_log_lost_total", [((), float(self._lost()))]
        yield "shoal_alerts_total", [((k,), float(n)) for k, n in sorted(self._alerts().items())]
        yield (
            "shoal_supply_age_seconds",
            [
                ((kind, pool), age_s)
                for kind, ages in facts.supply_age_s().items()
                for pool, age_s in sorted(ages.items())
            ],
        )
        yield from self._models()

    def _ended(self, models: Sequence[str]) -> Iterator[Sample]:
        """Ended requests of each model that met and that missed the SLO."""
        for model in models:
            found = self._facts.loop.windows.ended_requests(model)
            yield (model, "met"), float(found.attained)
            yield (model, "missed"), float(found.ended - found.attained)

    def _models(self) -> Iterator[tuple[Name, Iterable[Sample]]]:
        done, now = self._facts.leading(), self._facts.standing()
        if done is None or now is None:
            return
        models = now.models
        yield "shoal_cost_usd_per_hour", [((), now.usd_per_h)]
        yield "shoal_cost_usd_total", [((), self._facts.account.totals().usd)]
        budget = done.cluster.policy.budget_usd_per_h
        if budget > 0.0:
            yield "shoal_budget_usd_per_hour", [((), budget)]
        services = done.cluster.services
        yield "shoal_slo_promised_ratio", [((s.model,), s.percentile) for s in services]
        yield "shoal_requests_total", self._ended([s.model for s in services])
        yield "shoal_model_level", [((m.model,), float(Level(m.level).urgency)) for m in models]
        yield "shoal_proposal_waits", [((m.model,), float(bool(m.proposal))) for m in models]
        yield "shoal_held", [((m.model,), float(m.is_held)) for m in models]
        yield "shoal_uncertain", [((m.model,), float(bool(m.uncertain))) for m in models]
        yield "shoal_capacity_factor", [((m.model,), m.capacity_factor) for m in models]
        yield "shoal_prefix_hit_ratio", [((m.model,), m.prefix_hit) for m in models]
        yield (
            "shoal_telemetry_age_seconds",
            [((m.model,), m.telemetry_age_s) for m in models if m.telemetry_age_s is not None],
        )
        yield (
            "shoal_demand_requests_per_second",
            [((m.model,), m.demand_req_per_s) for m in models if m.demand_req_per_s is not None],
        )
        yield (
            "shoal_adapter_requests_per_second",
            [
                ((m.model, adapter), rate)
                for m in models
                for adapter, rate in m.adapters_req_per_s.items()
            ],
        )
        yield (
            "shoal_target_requests_per_second",
            [((m.model,), m.target_req_per_s) for m in models],
        )
        yield (
            "shoal_capacity_requests_per_second",
            [
                ((m.model, state), rate)
                for m in models
                for state, rate in (("wanted", m.wanted_req_per_s), ("ready", m.ready_req_per_s))
            ],
        )
        yield (
            "shoal_slo_attained_ratio",
            [((m.model,), m.attained) for m in models if m.attained is not None],
        )
        yield (
            "shoal_combos",
            [
                ((m.model, state), float(count))
                for m in models
                for state, count in (("wanted", m.wanted), ("ready", m.ready))
            ],
        )
        declared = {model.model for model in models}
        for series in self._desired:
            if series[0] not in declared and not _is_left_alone(
                series[0], done.after.declared.controls
            ):
                self._desired[series] = 0
        for model in models:
            if not model.planned or model.is_held:
                continue
            for series in [known for known in self._desired if known[0] == model.model]:
                self._desired[series] = 0
            for region, pool, role, count in model.desired:
                self._desired[model.model, region, pool, role] = count
        yield (
            "shoal_desired_replicas",
            [(series, float(count)) for series, count in sorted(self._desired.items())],
        )


def _is_left_alone(model: str, held: Mapping[str, Reason]) -> bool:
    """Whether instances of an undeclared model keep running.

    held: active restrictions by "scope/kind", as in the state.
    """
    return f"{model}/undeclared" in held or any(
        f"{scope}/{kind}" in held for scope in (model, ALL_MODELS) for kind in ("pause", "release")
    )
