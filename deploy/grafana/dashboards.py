"""Write the Grafana dashboards: deploy/grafana/fleet.json and model.json.

python deploy/grafana/dashboards.py            # write them
python deploy/grafana/dashboards.py --check    # exit 1 if one of them is out of date

Import a file in Grafana, or mount the folder as a provisioned folder. Every dashboard asks
for its Prometheus by a variable.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueGraphMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))

from deploy.written_files import write_or_check  # noqa: E402  the path comes first

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDE, _HALF, _THIRD, _HIGH, _LOW = 24, 12, 6, 8, 4

Query = tuple[str, str]
"""PromQL, and the legend of its series."""


def _targets(queries: Sequence[Query]) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + number))
        for number, (expr, legend) in enumerate(queries)
    ]


def _lines(
    title: str, about: str, unit: str, *queries: Query, width: int = _HALF
) -> timeseries.Panel:
    """A chart over time."""
    return (
        timeseries.Panel()
        .title(title)
        .description(about)
        .unit(unit)
        .datasource(_SOURCE)
        .targets(list(_targets(queries)))
        .min(0)
        .span(width)
        .height(_HIGH)
    )


def _number(title: str, about: str, unit: str, query: str) -> stat.Panel:
    """One figure with its recent course."""
    return (
        stat.Panel()
        .title(title)
        .description(about)
        .unit(unit)
        .datasource(_SOURCE)
        .targets(list(_targets([(query, "")])))
        .graph_mode(BigValueGraphMode.AREA)
        .span(_THIRD)
        .height(_LOW)
    )


def _dashboard(title: str, uid: str) -> dashboard.Dashboard:
    source = dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["shoal"])
        .editable()
        .time("now-6h", "now")
        .refresh("10s")
        .with_variable(source)
    )


def fleet() -> dashboard.Dashboard:
    """All models: cost, attainment, capacity against demand, decisions, health."""
    capacity = 'sum by (model) (shoal_capacity_requests_per_second{state="ready"})'
    return (
        _dashboard("Shoal: fleet", "shoal-fleet")
        .with_panel(_number("Cost", "Rent of all nodes that are billed now.", "currencyUSD",
                            "shoal_cost_usd_per_hour"))
        .with_panel(_number("Lowest attainment", "Share of requests within the SLO, worst model.",
                            "percentunit", "min(shoal_slo_attained_ratio)"))
        .with_panel(_number("Leader decided", "Age of the leader's last decision.", "s",
                            "max(shoal_tick_age_seconds and on (instance) shoal_leader == 1)"))
        .with_panel(_number("Held models", "Models that are paused or released.", "short",
                            "sum(shoal_held)"))
        .with_panel(_lines("Cost over time", "USD per hour.", "currencyUSD",
                           ("shoal_cost_usd_per_hour", "billed nodes")))
        .with_panel(_lines("Load of each model", "Demand as a share of the ready capacity.",
                           "percentunit",
                           (f"shoal_demand_requests_per_second / on (model) {capacity}",
                            "{{model}}")))
        .with_panel(_lines("Attainment", "Share of requests within the SLO, long window.",
                           "percentunit", ("shoal_slo_attained_ratio", "{{model}}")))
        .with_panel(_lines("Decisions per minute", "By kind.", "short",
                           ("60 * sum by (kind) (rate(shoal_decisions_total[5m]))", "{{kind}}")))
        .with_panel(_lines("Instances that should run", "By model, pool and role.", "short",
                           ("sum by (model, region, pool, role) (shoal_desired_replicas)",
                            "{{model}} {{region}}/{{pool}} {{role}}"), width=_WIDE))
        .with_panel(_lines("Age of prices and offers", "A feed that stops shows here.", "s",
                           ("max by (kind, pool) (shoal_supply_age_seconds)", "{{kind}} {{pool}}")))
        .with_panel(_lines("Reading", "Records that the leader has not read yet.", "short",
                           ("sum by (topic) (shoal_lag_records and on (instance) "
                            "shoal_leader == 1)", "{{topic}}")))
    )  # fmt: skip


def model() -> dashboard.Dashboard:
    """One model: demand, target, capacity, attainment, gateway."""
    of = '{model="$model"}'
    choice = (
        dashboard.QueryVariable("model")
        .label("Model")
        .datasource(_SOURCE)
        .query("label_values(shoal_target_requests_per_second, model)")
    )
    return (
        _dashboard("Shoal: model", "shoal-model")
        .with_variable(choice)
        .with_panel(_lines("Demand, target and capacity", "Requests per second.", "reqps",
                           (f"shoal_demand_requests_per_second{of}", "demand"),
                           (f"shoal_target_requests_per_second{of}", "target"),
                           ('shoal_capacity_requests_per_second{model="$model"}',
                            "capacity {{state}}"), width=_WIDE))
        .with_panel(_lines("Combos", "Wanted and ready.", "short",
                           (f"shoal_combos{of}", "{{state}}")))
        .with_panel(_lines("Attainment", "Share of requests within the SLO.", "percentunit",
                           (f"shoal_slo_attained_ratio{of}", "attained")))
        .with_panel(_lines("Requests by ending", "At the gateways, per second.", "reqps",
                           ('sum by (ending) (rate({__name__="shoal:gateway_requests_total",'
                            'model="$model"}[1m]))', "{{ending}}")))
        .with_panel(_lines("Queue at the gateways", "Requests that wait for capacity.", "short",
                           ('sum({__name__="shoal:gateway_waiting",model="$model"})', "waiting"),
                           ('sum({__name__="shoal:gateway_in_flight",model="$model"})',
                            "in flight")))
        .with_panel(_lines("Age of telemetry", "Scale-in pauses if it is stale.", "s",
                           (f"shoal_telemetry_age_seconds{of}", "age")))
    )  # fmt: skip


DASHBOARDS = {"fleet.json": fleet, "model.json": model}


def text(make: object) -> str:
    """The JSON of one dashboard."""
    assert callable(make)  # noqa: S101  one of DASHBOARDS
    return JSONEncoder(sort_keys=True, indent=1).encode(make().build()) + "\n"


def queries() -> list[str]:
    """Every PromQL expression of all dashboards."""
    found = []
    for make in DASHBOARDS.values():
        for panel in make().build().panels or ():
            found += [target.expr for target in getattr(panel, "targets", None) or ()]
    return found


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 if `--check` finds an outdated file."""
    wanted = {FOLDER / name: text(make) for name, make in DASHBOARDS.items()}
    return write_or_check(wanted, "deploy/grafana/dashboards.py", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
