"""Create the topics on a real Kafka, or check them on the embedded broker, before any worker
starts.

`topic_settings` handles settings of existing topics. Creation is idempotent, so several processes
may create topics at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from tenacity import AsyncRetrying, retry_if_exception, wait_fixed

from streams.broker.broker_reach import BrokerUnreachable, greet
from streams.broker.topic_settings import TopicsUnusable as TopicsUnusable
from streams.broker.topic_settings import update_settings
from topics.edge.kafka_clients import EMBEDDED_CLUSTER, FilesUnreadable, security
from topics.edge.kafka_clients import admin as new_admin
from topics.topic_table import PREFIX, TABLE, Topic

_MAX_REPLICAS = 3
_TIMEOUT_S = 5.0  # to connect; creation may take twice as long
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class EnsuredTopics:
    """Result of `ensure_topics`. created: names on the wire of new topics. changed: names on the
    wire of topics with updated settings. partitions: partition count of each topic, by short name.
    """

    embedded: bool
    created: tuple[str, ...]
    partitions: Mapping[str, int]
    changed: tuple[str, ...] = ()


async def ensure_topics(
    bootstrap: str,
    prefix: str = PREFIX,
    table: Sequence[Topic] = TABLE,
) -> EnsuredTopics:
    """Return once every topic of `table` exists with its settings.

    BrokerUnreachable: no Kafka broker answers. TopicsUnusable: a topic cannot be created or has
    unsuitable settings.
    """
    await greet(bootstrap, _TIMEOUT_S)
    try:
        admin = new_admin(bootstrap, "shoal-admin", request_timeout_ms=int(_TIMEOUT_S * 1e3))
    except FilesUnreadable as error:  # They became unreadable after `greet`.
        raise BrokerUnreachable(bootstrap, str(error)) from None
    try:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await admin.start()
                cluster = await admin.describe_cluster()
        except (TimeoutError, KafkaError, OSError) as error:
            raise BrokerUnreachable(
                bootstrap, security().explain_failure(error, _TIMEOUT_S)
            ) from None
        try:
            async with asyncio.timeout(2 * _TIMEOUT_S):
                return await ensure_patiently(admin, cluster, prefix, table)
        except TimeoutError:
            raise TopicsUnusable(
                f"{bootstrap}: topics were not ready within {2 * _TIMEOUT_S:g} s"
            ) from None
        except KafkaError as error:
            raise TopicsUnusable(f"{bootstrap}: {error}") from None
    finally:
        with contextlib.suppress(Exception):
            await admin.close()


async def ensure_patiently(
    admin: Any, cluster: dict[str, Any], prefix: str, table: Sequence[Topic]
) -> EnsuredTopics:
    """Ensure that the topics exist, with retries while the cluster reports a temporary error (an
    election, a closed connection). The caller limits the time."""
    trying = AsyncRetrying(retry=retry_if_exception(_passes), wait=wait_fixed(_PAUSE_S))
    return await trying(_ensure, admin, cluster, prefix, table)


def _passes(error: BaseException) -> bool:
    return isinstance(error, KafkaError) and bool(error.retriable)


async def _ensure(
    admin: Any, cluster: dict[str, Any], prefix: str, table: Sequence[Topic]
) -> EnsuredTopics:
    wanted = {topic.wire_name(prefix): topic for topic in table}
    missing = sorted(set(wanted) - set(await admin.list_topics()))
    if str(cluster.get("cluster_id") or "").startswith(EMBEDDED_CLUSTER):
        if missing:
            raise TopicsUnusable(
                f"the embedded broker lacks {missing[0]}: it was started with another prefix"
            )
        partitions = await _partitions(admin, wanted)
        return EnsuredTopics(True, (), partitions or {})
    changed = await update_settings(admin, {n: t for n, t in wanted.items() if n not in missing})
    replicas = min(_MAX_REPLICAS, len(cluster["brokers"]))
    created = await _create(admin, [(name, wanted[name]) for name in missing], replicas)
    while (partitions := await _partitions(admin, wanted)) is None:
        await asyncio.sleep(0.1)
    return EnsuredTopics(False, created, partitions, changed)


async def _create(
    admin: Any, topics: Sequence[tuple[str, Topic]], replicas: int
) -> tuple[str, ...]:
    if not topics:
        return ()
    answer = await admin.create_topics(
        [
            NewTopic(name, topic.partitions, replicas, topic_configs=topic.settings())
            for name, topic in topics
        ]
    )
    created = []
    for name, code, *rest in answer.topic_errors:
        if code == 0:
            created.append(name)
        elif for_code(code) is not TopicAlreadyExistsError:  # Another process created it first.
            if for_code(code).retriable:
                raise for_code(code)(name)
            why = (rest[0] if rest else "") or for_code(code).__name__
            raise TopicsUnusable(f"topic {name} cannot be created: {why}")
    return tuple(created)


async def _partitions(admin: Any, wanted: Mapping[str, Topic]) -> dict[str, int] | None:
    """Partition count of each topic, by short name; None while a topic is missing or a partition
    has no leader."""
    # List topics first, because a request to describe unknown topics could create them.
    if not set(wanted) <= set(await admin.list_topics()):
        return None
    described = await admin.describe_topics(list(wanted))
    for topic in described:
        if topic["error_code"] or any(part["leader"] < 0 for part in topic["partitions"]):
            return None
    return {wanted[topic["topic"]].name: len(topic["partitions"]) for topic in described}
