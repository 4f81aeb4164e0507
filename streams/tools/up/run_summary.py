"""The summary of a run: its options, served requests, cost and decisions, as values for JSON.

docs/reference/json.md describes the keys of `--summary`. Only writing the file is I/O.
Latencies and reactions are in domain time; lateness and overhead are in real milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoscaler.estimate.window_stats import EndedRequests
from streams.tools.up.run_state import Picture
from streams.tools.up.run_story import chapters, mean_share_of_peak
from streams.tools.up.trace_facts import Traffic
from topics.records import ScoreSplit

JUDGED_UP_TO_SPEED = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run and its trace ended. for_s: the value of --for, 0 = none.

    told: the replayer's last counts of requests, used if its report is missing.
    """

    traffic: Traffic
    for_s: float
    interrupted: bool
    told: Mapping[str, int] = field(default_factory=dict)

    def how(self, sent: int) -> str:
        """The value of the summary's key `ended`."""
        if self.interrupted:
            return "interrupted"
        if sent >= self.traffic.requests:
            return "whole trace"
        return "time given" if self.for_s and not self.told else "load lost"


def summarize(
    report: Mapping[str, Any],
    picture: Picture,
    now_ms: int,
    overhead_ms: Mapping[str, float | None],
    speed: float,
    wall_s: float,
    restarts: Mapping[str, int],
    ended: Ended,
    began_ms: int = 0,
) -> dict[str, Any]:
    """The summary.

    report: the replayer's report, empty if the replayer wrote none. began_ms: domain time of the
    run's start.
    """
    requests = report.get("requests") or _last_told(ended.told)
    models = report.get("models", {})
    unknown: dict[str, float | None] = {"p50": None, "p99": None}
    return {
        "requests": requests,
        "failures": report.get("failures", {}),
        "slo_attainment": _share(picture.all_requests),
        "trace": {
            "requests": ended.traffic.requests,
            "duration_s": round(ended.traffic.duration_s, 3),
            "gaps_s": [[round(g.start_s, 3), round(g.end_s, 3)] for g in ended.traffic.gaps],
        },
        "ended": ended.how(requests["sent"]),
        "models": {
            name: {**row, "slo_attainment": _share(picture.requests(name))}
            for name, row in models.items()
        },
        "simulated": [],
        "otherwise": [],
        "mean_share_of_peak": mean_share_of_peak(picture.demand),
        "spot_saving_usd": round(picture.spot_saving_usd(), 4),
        "story": [
            {"at_s": (one.at_ms - began_ms) / 1000.0, "what": one.what, "then": list(one.then)}
            for one in chapters(picture.story, began_ms)
        ],
        "ways": [
            {
                "model": row.model,
                "kind": row.kind,
                "way": row.way,
                "requests": row.requests,
                "planned": round(row.planned, 4),
                "served": round(row.served, 4),
            }
            for row in picture.ways.rows()
        ],
        "thresholds": {
            name: _thresholds(routes.split)
            for name, routes in sorted(picture.routes.items())
            if routes.split is not None
        },
        "cost_usd": round(picture.usd(), 4),
        "gpu_hours": {name: round(hours, 4) for name, hours in sorted(picture.gpu_hours().items())},
        "decisions": dict(sorted(picture.counts.items())),
        "reaction_s": [round(value, 3) for value in picture.reactions_s()],
        "speed": speed,
        "wall_s": round(wall_s, 1),
        "replay_late_ms": report.get("replay_late_ms", unknown),
        "overhead_ms": dict(overhead_ms),
        "latency_judged": speed <= JUDGED_UP_TO_SPEED,
        "restarts": {name: count for name, count in restarts.items() if count},
    }


def _last_told(told: Mapping[str, int]) -> dict[str, int]:
    """The counts of requests of a replay without a report. Requests without an answer count as
    dropped."""
    sent, served, failed = (told.get(key, 0) for key in ("sent", "served", "failed"))
    return {"sent": sent, "served": served, "failed": failed, "dropped": sent - served - failed}


def _thresholds(split: ScoreSplit) -> list[float | None]:
    """The score below which each model answers, except for the last one.

    None if the model gets all requests or none.
    """
    ends = (None, *split.edges, None)
    return [ends[cut] for cut in split.cuts]


def _share(requests: EndedRequests) -> float | None:
    return None if requests.share is None else round(requests.share, 6)
