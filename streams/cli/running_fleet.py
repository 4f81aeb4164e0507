"""The fleet of a running controller, read once from its topics without a consumer group."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, replace

from aiokafka.errors import KafkaError

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.validation import InvalidValue
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.rollout.versions import declared_version, runs
from autoscaler.tick.restore import restore
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import TopicsUnusable, ensure_topics
from streams.controller.control_topics import ControlTopics
from streams.files.user_errors import UserError
from streams.loop.control_state import ControlState
from topics.error_text import error_text
from topics.launch_version import without_template

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Running:
    """The assigned instances and the demand. counts: assigned instances by combo id.

    demand_req_per_s: requests/s by model, from the model's last decision. strangers: combos of
    instances with a model or pool that the file does not declare. outdated: assigned combos that
    run another version than the declared one.
    """

    counts: dict[str, int]
    demand_req_per_s: dict[str, float]
    strangers: tuple[str, ...]
    outdated: dict[str, int]


def read_running(broker: str, prefix: str, cluster: Cluster) -> Running:
    """The running fleet. UserError: the broker or its topics do not answer."""
    try:
        latest = asyncio.run(_read(broker, prefix))
    except (BrokerUnreachable, TopicsUnusable, KafkaError, TimeoutError) as error:
        raise UserError(f"--broker {broker}: {error_text(error, 'no answer in time')}") from error
    now_ms = time.time_ns() // 1_000_000
    state = restore(
        cluster,
        latest.desired.assignments,
        latest.desired.routes,
        latest.statuses,
        latest.decisions,
        now_ms,
    )
    counts: Counter[str] = Counter(
        group.combo_id for group in state.groups if group.life is Life.ACTIVE
    )
    known = {combo: n for combo, n in counts.items() if _declared(combo, cluster)}
    demand = {
        decision.model: decision.demand_req_per_s
        for decision in sorted(latest.decisions, key=lambda d: (d.at_ms, d.number))
        if decision.demand_req_per_s > 0.0
    }
    outdated: Counter[str] = Counter(
        group.combo_id
        for group in state.groups
        if group.life is Life.ACTIVE
        and group.combo_id in known
        and not _is_declared(group, cluster)
    )
    return Running(known, demand, tuple(sorted(set(counts) - set(known))), dict(outdated))


async def _read(broker: str, prefix: str) -> ControlState:
    """The last values of the control topics."""
    latest = ControlState()
    found = await ensure_topics(broker, prefix)
    control = ControlTopics(
        broker,
        prefix,
        found.partitions,
        lambda _topic, record, offset, _ms: latest.take(record, offset),
        latest.drop,
        lambda _: None,
        embedded=found.embedded,
    )
    try:
        await control.start(_TIMEOUT_S)
    finally:
        await control.close()
    return latest


def _is_declared(group: ServingGroup, cluster: Cluster) -> bool:
    """Whether `group` runs the declared version. Templates of executors are not declared."""
    launched = replace(group, version=without_template(group.version), launched="")
    return runs(launched, declared_version(cluster.service(group.model)))


def _declared(combo_id: str, cluster: Cluster) -> bool:
    try:
        model, members = parse_combo_id(combo_id)
        cluster.service(model)
        for _, _, pool, _ in members:
            cluster.pool(pool)
    except InvalidValue:
        return False
    return True
