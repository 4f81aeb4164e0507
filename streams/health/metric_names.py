"""Table of all controller metrics: name, kind, labels and meaning.

`deploy/reference_pages.py` writes docs/reference/metrics.md from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal[
    "shoal_build_info",
    "shoal_leader",
    "shoal_leader_token",
    "shoal_tick_age_seconds",
    "shoal_ticks_total",
    "shoal_ticks_skipped_total",
    "shoal_tick_cpu_seconds",
    "shoal_decisions_total",
    "shoal_solver_restarts_total",
    "shoal_records_sent_total",
    "shoal_records_dropped_total",
    "shoal_telemetry_records_total",
    "shoal_telemetry_age_seconds",
    "shoal_lag_records",
    "shoal_window_workers_late_seconds",
    "shoal_dead_letters_total",
    "shoal_undeclared_records_total",
    "shoal_refused_declarations",
    "shoal_refused_records_total",
    "shoal_decision_log_lost_total",
    "shoal_alerts_total",
    "shoal_supply_age_seconds",
    "shoal_demand_requests_per_second",
    "shoal_adapter_requests_per_second",
    "shoal_target_requests_per_second",
    "shoal_capacity_requests_per_second",
    "shoal_slo_attained_ratio",
    "shoal_slo_promised_ratio",
    "shoal_requests_total",
    "shoal_combos",
    "shoal_desired_replicas",
    "shoal_model_level",
    "shoal_proposal_waits",
    "shoal_held",
    "shoal_uncertain",
    "shoal_capacity_factor",
    "shoal_prefix_hit_ratio",
    "shoal_cost_usd_per_hour",
    "shoal_cost_usd_total",
    "shoal_budget_usd_per_hour",
]
Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. labels: label names, in order."""

    name: Name
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


METRICS: tuple[Metric, ...] = (
    Metric("shoal_build_info", "gauge", ("version",), "version of Shoal"),
    Metric("shoal_leader", "gauge", (), "1 while this controller leads, 0 while it stands by"),
    Metric("shoal_leader_token", "gauge", (), "highest leader token seen"),
    Metric(
        "shoal_tick_age_seconds",
        "gauge",
        (),
        "seconds since the last decision, or since this controller leads",
    ),
    Metric("shoal_ticks_total", "counter", (), "ticks, with and without effects"),
    Metric(
        "shoal_ticks_skipped_total",
        "counter",
        (),
        "seconds without a tick, because the controller is overloaded",
    ),
    Metric("shoal_tick_cpu_seconds", "histogram", (), "CPU time of one tick"),
    Metric("shoal_decisions_total", "counter", ("kind",), "published decisions"),
    Metric(
        "shoal_solver_restarts_total", "counter", (), "planners killed because they did not answer"
    ),
    Metric("shoal_records_sent_total", "counter", (), "records that the broker has acknowledged"),
    Metric(
        "shoal_records_dropped_total",
        "counter",
        (),
        "records not sent: not the leader, queue full, or too large",
    ),
    Metric(
        "shoal_telemetry_records_total",
        "counter",
        ("result",),
        "telemetry records that were applied, duplicate, late or ahead",
    ),
    Metric("shoal_telemetry_age_seconds", "gauge", ("model",), "age of the newest reported second"),
    Metric("shoal_lag_records", "gauge", ("topic",), "unread records"),
    Metric(
        "shoal_window_workers_late_seconds",
        "gauge",
        (),
        "time since window workers last merged telemetry in time; 0 while they do, or without them",
    ),
    Metric("shoal_dead_letters_total", "counter", (), "records that could not be decoded"),
    Metric(
        "shoal_undeclared_records_total",
        "counter",
        ("topic",),
        "dropped records of undeclared models, nodes or pools",
    ),
    Metric(
        "shoal_refused_declarations", "gauge", (), "models whose last declaration cannot be used"
    ),
    Metric(
        "shoal_refused_records_total",
        "counter",
        ("topic", "reason"),
        "records without a valid signature",
    ),
    Metric("shoal_decision_log_lost_total", "counter", (), "ticks missing from the decision log"),
    Metric(
        "shoal_alerts_total",
        "counter",
        ("result",),
        "alerts that were accepted, duplicate, refused, or of an unknown model",
    ),
    Metric(
        "shoal_supply_age_seconds",
        "gauge",
        ("kind", "pool"),
        "age of the last price or availability",
    ),
    Metric("shoal_demand_requests_per_second", "gauge", ("model",), "arrivals in the local window"),
    Metric(
        "shoal_adapter_requests_per_second",
        "gauge",
        ("model", "adapter"),
        "arrivals in the local window for a LoRA adapter",
    ),
    Metric("shoal_target_requests_per_second", "gauge", ("model",), "demand that is planned for"),
    Metric(
        "shoal_capacity_requests_per_second",
        "gauge",
        ("model", "state"),
        "capacity of desired and of ready combos",
    ),
    Metric(
        "shoal_slo_attained_ratio",
        "gauge",
        ("model",),
        "share of requests in the long window that met the SLO",
    ),
    Metric(
        "shoal_slo_promised_ratio",
        "gauge",
        ("model",),
        "share of requests that is to meet the SLO, as declared",
    ),
    Metric(
        "shoal_requests_total",
        "counter",
        ("model", "slo"),
        "ended requests that met or missed the SLO; failed and refused ones missed it",
    ),
    Metric("shoal_combos", "gauge", ("model", "state"), "desired and ready combos"),
    Metric(
        "shoal_desired_replicas",
        "gauge",
        ("model", "region", "pool", "role"),
        "desired instances, for KEDA or an HPA; absent before a plan and on a standby",
    ),
    Metric(
        "shoal_model_level",
        "gauge",
        ("model",),
        "verdict on the model: 0 ok, 1 attention, 2 at risk, 3 broken",
    ),
    Metric("shoal_proposal_waits", "gauge", ("model",), "1 while a proposal waits for approval"),
    Metric("shoal_held", "gauge", ("model",), "1 while the model is paused or released"),
    Metric(
        "shoal_uncertain",
        "gauge",
        ("model",),
        "1 while measurements differ from predictions by more than a fifth",
    ),
    Metric(
        "shoal_capacity_factor",
        "gauge",
        ("model",),
        "measured capacity of instances as a multiple of the planned one",
    ),
    Metric(
        "shoal_prefix_hit_ratio",
        "gauge",
        ("model",),
        "share of prompt tokens from prefix caches that plans count on",
    ),
    Metric("shoal_cost_usd_per_hour", "gauge", (), "cost of the billed nodes"),
    Metric(
        "shoal_cost_usd_total",
        "counter",
        (),
        "cost since the first tick of this controller",
    ),
    Metric(
        "shoal_budget_usd_per_hour", "gauge", (), "`policy.budget`; absent if there is no budget"
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}
