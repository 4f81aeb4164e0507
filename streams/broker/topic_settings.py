"""Update settings of existing topics if the update loses no record; refuse other differences.

Partition counts stay unchanged, because a change would move keys to other partitions. Readers take
the count from the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from topics.topic_table import Topic

_SET_ON_TOPIC = 1  # Kafka's code for a setting of the topic itself, not a default of the broker
_FOR_EVER = -1


class TopicsUnusable(RuntimeError):
    """A topic is missing and cannot be created, or its settings would lose records."""


async def update_settings(admin: Any, existing: Mapping[str, Topic]) -> tuple[str, ...]:
    """Give existing topics the settings of the table; returns the names of changed topics.

    existing: topics by name on the wire. A topic with another clean-up policy belongs to another
    application and is refused (TopicsUnusable). A longer retention stays, because an operator chose
    it. Settings that the table does not name stay too.
    """
    if not existing:
        return ()
    changes: list[ConfigResource] = []
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in existing]
    for response in await admin.describe_configs(resources):
        for _error, _message, _kind, name, entries in response.resources:
            found = {entry[0]: entry[1] for entry in entries}
            wanted = existing[name].settings()
            _refuse_another_policy(name, found, wanted)
            change = {k: v for k, v in wanted.items() if _differs(k, found.get(k), v)}
            if change:
                # Kafka replaces all settings of the topic with the settings in the request.
                own = {entry[0]: entry[1] for entry in entries if entry[3] == _SET_ON_TOPIC}
                kind = ConfigResourceType.TOPIC
                changes.append(ConfigResource(kind, name, {**own, **change}))
    if not changes:
        return ()
    for response in await admin.alter_configs(changes):
        for code, message, _kind, name in response.resources:
            if code:
                why = message or for_code(code).__name__
                raise TopicsUnusable(f"settings of topic {name} cannot be changed: {why}")
    return tuple(sorted(change.name for change in changes))


def _refuse_another_policy(name: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    key = "cleanup.policy"
    if found.get(key, wanted[key]) != wanted[key]:
        raise TopicsUnusable(
            f"topic {name} exists with {key}={found[key]}, Shoal needs {wanted[key]}: "
            "change it or use another prefix"
        )


def _differs(key: str, found: str | None, wanted: str) -> bool:
    if found is None or key != "retention.ms":
        return found is not None and found != wanted
    return int(found) != _FOR_EVER and int(found) < int(wanted)
