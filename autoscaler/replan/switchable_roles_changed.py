"""Trigger: a model is below target, and more of its groups may take other roles than at its last
plan, or the previous switch is over.

Additions keep the roles of all existing groups, so only a full plan can respond.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from autoscaler.domain.reason import Reason
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.state.replan_trigger import Trigger
from topics.reason_codes import ReasonCode


def fire(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model that has more switchable combos than at its last full plan, or has
    switchable combos after the end of a switch."""
    planned = news.state.full.last.switchable
    switching = {group.name for group in news.fleet.groups if group.switch}
    done = {g.model for g in news.state.groups if g.switch and g.name not in switching}
    may = {i: _model(i) for i, count in news.fleet.switchable.items() if count}
    more = {m for i, m in may.items() if m in done or news.fleet.switchable[i] > planned.get(i, 0)}
    for model in sorted(more):
        yield Trigger((model,), Reason(ReasonCode.ROLES, model))


def remember_switchable(
    planned: Mapping[str, int], now: Mapping[str, int], scope: Collection[str]
) -> dict[str, int]:
    """`planned`, the switchable combos at each model's last full plan, updated with `now` for the
    models in `scope`."""
    kept = {combo_id: count for combo_id, count in planned.items() if _model(combo_id) not in scope}
    return kept | {combo_id: count for combo_id, count in now.items() if _model(combo_id) in scope}


def _model(combo_id: str) -> str:
    return parse_combo_id(combo_id)[0]
