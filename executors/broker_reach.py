"""Start Kafka clients of the serving plane: retries, and one log line per outage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from topics.edge.kafka_clients import ask, options, security

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_START_TIMEOUT_S = 10.0
_FAILURES = (KafkaError, OSError, TimeoutError)

_Client = TypeVar("_Client", AIOKafkaConsumer, AIOKafkaProducer)


async def start_client(bootstrap: str, make: Callable[[], _Client]) -> _Client:
    """Start a client and return it. Retries without limit, with growing pauses during one
    outage."""

    async def start() -> _Client:
        client = make()
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await client.start()
        except BaseException:
            with contextlib.suppress(Exception):
                await client.stop()
            raise
        return client

    async def log_failure(state: RetryCallState) -> None:
        # One warning per outage; further attempts are logged at debug level.
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1:
            log.warning("no broker at %s, retrying: %s", bootstrap, await _why(bootstrap, error))
        else:
            log.debug("no broker at %s: %s", bootstrap, error)

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(_FAILURES),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        before_sleep=log_failure,
    )
    return await retrying(start)


async def _why(bootstrap: str, error: BaseException | None) -> str:
    """The reason why a new connection to the broker fails, because clients do not report it;
    `error` if the connection succeeds."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            await ask(host.strip("[]"), int(port), options(security()))
    except _FAILURES as failure:
        return security().explain_failure(failure, _START_TIMEOUT_S)
    except Exception as failure:  # no error here may end the retries
        log.debug("no reason found: %r", failure)
    return str(error or "")
