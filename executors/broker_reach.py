"""Start Kafka clients of the serving plane: TLS and SASL, retries, and one log line per outage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.metadata import MetadataRequest
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from topics.connection import KafkaSecurity

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_START_TIMEOUT_S = 10.0
_FAILURES = (KafkaError, OSError, TimeoutError)

_Client = TypeVar("_Client", AIOKafkaConsumer, AIOKafkaProducer)


def security_options() -> dict[str, Any]:
    """This process's TLS and SASL settings as aiokafka options. Raises InvalidRecord for invalid
    settings, and OSError for unreadable files."""
    settings = KafkaSecurity.from_environment(os.environ)
    return settings.client_options(lambda path: Path(path).read_text(), create_ssl_context)


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
            connection = await create_conn(host.strip("[]"), int(port), **security_options())
            try:
                await connection.send(MetadataRequest([]))
            finally:
                connection.close()
    except _FAILURES as failure:
        return KafkaSecurity.from_environment(os.environ).explain_failure(failure, _START_TIMEOUT_S)
    except Exception as failure:  # no error here may end the retries
        log.debug("no reason found: %r", failure)
    return str(error or "")
