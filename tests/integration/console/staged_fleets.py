"""Staged costs of other fleets, for tests of the page."""

from __future__ import annotations

from autoscaler.domain.cluster import Cluster
from autoscaler.planning.fleet_comparison import FleetCost
from streams.console.cost_windows import CostWindows
from streams.console.history import FINE_MS, History
from streams.solver.other_fleets import Answer, WindowCosts


def fill_windows(windows: CostWindows, history: History, cluster: Cluster) -> None:
    """Windows over the time of `history`. The other fleets cost a fixed share more or less."""
    columns = history.columns("*")
    if columns is None:
        return
    for at_ms, spent_usd in zip(columns["t"], columns["spent"], strict=True):
        windows.sample(at_ms, spent_usd, {cluster.services[0].model: 7.0}, cluster, {}, {})
    while (waiting := windows.question()) is not None:
        question, asked = waiting
        costs = tuple(_costs(window.usd / window.hours) for window in asked)
        most = FleetCost(1.05 * max(columns["usd"]), 0.0)
        windows.answer(asked, question.peaks, Answer(most, costs, False, 0.1),
                       columns["t"][-1] - 12 * FINE_MS)  # fmt: skip


def _costs(usd_per_h: float) -> WindowCosts:
    by_type = {
        "NVIDIA H100": FleetCost(1.31 * usd_per_h, 0.0),
        "NVIDIA L4": FleetCost(0.7 * usd_per_h, 3.0),
    }
    return WindowCosts(by_type, FleetCost(1.12 * usd_per_h, 0.0), FleetCost(0.94 * usd_per_h, 0.0))
