"""Reaching the broker from the serving plane: TLS and SASL, retries, and why it does not work.

Owns the start of a Kafka client and its one line per outage.
"""

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

from topics.connection import Security

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_START_TIMEOUT_S = 10.0
_FAILURES = (KafkaError, OSError, TimeoutError)

_Client = TypeVar("_Client", AIOKafkaConsumer, AIOKafkaProducer)


def security_options() -> dict[str, Any]:
    """This process's TLS and SASL settings as aiokafka takes them. InvalidRecord, OSError."""
    settings = Security.from_environment(os.environ)
    return settings.options(lambda path: Path(path).read_text(), create_ssl_context)


async def reached(bootstrap: str, make: Callable[[], _Client]) -> _Client:
    """A started client, tried for ever with pauses that grow within one outage."""

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

    async def tell(state: RetryCallState) -> None:
        # Once per outage is enough for a person; the rest is for debugging.
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1:
            log.warning("no broker at %s, retrying: %s", bootstrap, await _why(bootstrap, error))
        else:
            log.debug("no broker at %s: %s", bootstrap, error)

    trying = AsyncRetrying(
        retry=retry_if_exception_type(_FAILURES),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        before_sleep=tell,
    )
    return await trying(start)


async def _why(bootstrap: str, error: BaseException | None) -> str:
    """Why one connection of its own fails, since a client keeps that to itself; else `error`."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            connection = await create_conn(host.strip("[]"), int(port), **security_options())
            try:
                await connection.send(MetadataRequest([]))
            finally:
                connection.close()
    except _FAILURES as found:
        return Security.from_environment(os.environ).why(found, _START_TIMEOUT_S)
    except Exception as found:  # whatever it is, it must not end the retries
        log.debug("no reason found: %r", found)
    return str(error or "")
