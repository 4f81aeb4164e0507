"""Operator endpoints of the controller: decision log, metrics, status, alerts and console.

This module opens and closes the endpoints. They observe the control loop; the loop does not depend
on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from streams.console.console_feed import ConsoleFeed
from streams.console.console_routes import ConsoleRoutes
from streams.console.log_history import fill
from streams.console.operator_endpoint import OperatorEndpoint
from streams.console.other_fleets_feed import OtherFleetsFeed
from streams.console.reasons_on_demand import ReasonsOnDemand
from streams.controller.controller_options import OperatorOptions
from streams.decision_log.log_writer import DecisionLog
from streams.health.alert_webhook import Webhook
from streams.health.controller_facts import Facts, Identity
from streams.health.controller_metrics import Metrics
from streams.health.status_server import HealthServer
from streams.loop.tick_loop import Loop
from streams.ports.merging import Merging
from topics.codec import encode
from topics.keys import Keys
from topics.macs import Signer, Verifier
from topics.records import Alert, Control
from topics.topic_table import CONTROLS, key_of, topic_of

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_operator_endpoints(
    settings: OperatorOptions,
    identity: Identity,
    loop: Loop,
    producer: Any,
    signer: Signer,
    leader: Callable[[], tuple[bool, int, str]],
    behind: Callable[[], Mapping[str, int]],
    merging: Callable[[], Merging],
    verifier: Verifier,
    keys: Keys,
) -> AsyncIterator[str]:
    """Context in which the endpoints of `settings` observe `loop`; yields the URL, "" for none.

    producer: an aiokafka producer for alerts; a standby publishes alerts too. signer: signs the
    alerts. leader, merging: see `Facts`. behind: see `Metrics`. verifier: verifies the records that
    the controller reads. keys: sign the heads of the decision log. UserError: the address is not
    available.
    """

    async def publish(record: Alert | Control) -> None:
        topic, key, value = topic_of(record), key_of(record), encode(record)
        # The last operator's clock may be ahead of this one.
        signer.sign_after(topic.name, key, verifier.last_signed_ms(topic.name, key))
        headers = signer.headers(topic.name, key, value)
        # Commands have one order, so they stay in one partition even if others are added.
        part = 0 if isinstance(record, Control) else None
        await producer.send_and_wait(
            topic.wire_name(identity.prefix), value, key=key, headers=headers, partition=part
        )

    async def forget(key: str) -> None:
        topic, of = CONTROLS, key.encode()
        signer.sign_after(topic.name, of, verifier.last_signed_ms(topic.name, of))
        headers = signer.headers(topic.name, of, None)
        await producer.send_and_wait(
            topic.wire_name(identity.prefix), None, key=of, headers=headers, partition=0
        )

    facts = Facts(identity, loop, leader, lambda: verifier.refused, merging=merging)
    written: DecisionLog | None = None
    if settings.record is not None:
        written = DecisionLog(
            settings.record, identity.controller, settings.record_bytes, keys=keys
        )
        facts.log_status = written.facts
        written.start()
        loop.watchers = (*loop.watchers, written.tick)
    webhook = Webhook(publish, settings.alert_token, loop.declared, loop.clock.now_s)
    lost = lambda: written.lost if written else 0  # noqa: E731
    metrics = Metrics(facts, lost, lambda: webhook.counts, behind)
    loop.watchers = (*loop.watchers, facts.tick, metrics.tick)
    following: list[asyncio.Future[None]] = []
    operator: OperatorEndpoint | None = None
    server: HealthServer | None = None
    try:
        if settings.http:
            known = lambda: facts.leader()[1] > 0  # noqa: E731  a question, asked later
            operators = settings.operators
            feed = ConsoleFeed(facts, bool(operators), not operators.has_proxy)
            loop.watchers = (*loop.watchers, feed.tick)
            operator = OperatorEndpoint(loop, operators, publish, forget)
            server = HealthServer(
                settings.http,
                facts,
                metrics,
                webhook,
                known,
                settings.read_token,
                settings.hosts,
                console=ConsoleRoutes(feed, operator, ReasonsOnDemand(facts, feed.book.requests)),
                operators=operators,
            )
            feed.unhealthy = server.unhealthy
            await server.start()
            others = OtherFleetsFeed(feed.windows, lambda: feed.viewed, loop.clock.now_ms)
            following.append(asyncio.ensure_future(feed.run()))
            following.append(asyncio.ensure_future(others.run()))
            if settings.record is not None:
                past = fill(feed, settings.record, identity.controller, loop.clock.now_ms())
                following.append(asyncio.ensure_future(past))
            log.info("console, metrics and status at %s", server.url)
        yield server.url if server else ""
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        if operator is not None:
            await operator.close()
        if server is not None:
            await server.close()
        if written is not None:
            written.close()
