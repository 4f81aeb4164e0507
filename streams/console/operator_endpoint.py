"""Operator commands over HTTP. They write the same signed records as `shoal pause`, `approve` and
so on.

A command needs the operator's token, a name and, for most commands, a reason. Without a token in
the controller's environment, every command is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from autoscaler.domain.validation import InvalidValue
from streams.controller.tick_loop import Loop
from streams.files.user_errors import UserError
from streams.health.tokens import OPERATOR_TOKEN, BearerToken
from streams.operator_commands import (
    COMMANDS,
    VERDICTS,
    Signed,
    control_record,
    refuse_silence,
    verdict_record,
)
from topics.checks import InvalidRecord
from topics.codec import write_value
from topics.error_text import error_text
from topics.records import Control

log = logging.getLogger(__name__)

MOST_BYTES = 8192
_MOST_PER_MINUTE = 60
_PUBLISH_S = 5.0

Publish = Callable[[Control], Awaitable[None]]


class OperatorEndpoint:
    """HTTP endpoint for commands of operators. publish: signs a record, writes it, and returns when
    the broker has it."""

    def __init__(self, loop: Loop, token: BearerToken, publish: Publish) -> None:
        self._loop = loop
        self._token = token
        self._publish = publish
        self._times: list[float] = []

    async def handle(self, request: web.Request) -> web.Response:
        """Answer POST /v1/controls: {"said": ...}, or {"error": ...} with 400 or higher."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            body = await request.clone(client_max_size=MOST_BYTES).read()
            record, said = self._record(orjson.loads(body))
        except web.HTTPRequestEntityTooLarge:
            return _answer(413, f"at most {MOST_BYTES} bytes")
        except web.RequestPayloadError:
            return _answer(400, "body: cannot be decompressed as its Content-Encoding says")
        except orjson.JSONDecodeError as error:
            return _answer(400, f"body: not JSON ({error})")
        except (UserError, InvalidRecord, InvalidValue) as error:
            return _answer(409, str(error))
        try:
            async with asyncio.timeout(_PUBLISH_S):
                await self._publish(record)
        except Exception as error:
            log.warning("console: a command was not written: %s", error_text(error))
            return _answer(503, "the broker does not answer; nothing was changed")
        log.info("console: %s by %s", said, record.who)
        return web.Response(body=write_value({"said": said}), content_type="application/json")

    def _record(self, asked: Any) -> tuple[Control, str]:
        """The record of a command. UserError: a field is missing or invalid."""
        if not isinstance(asked, dict):
            raise UserError("body: not a JSON object")
        command, why = _text(asked, "command"), _text(asked, "why").strip()
        if command not in COMMANDS:
            raise UserError(f"command: {command!r} is not allowed; allowed: {', '.join(COMMANDS)}")
        who = _text(asked, "who").strip()
        if not who:
            raise UserError("who: '' is not allowed; allowed: your name")
        refuse_silence(command, why, "why")
        latest = self._loop.latest
        by = Signed(who, why, self._loop.clock.now_ms())
        if command in VERDICTS:
            number = asked.get("proposal")
            if type(number) is not int or number < 1:
                raise UserError(f"proposal: {number!r} is not allowed; allowed: a number from 1")
            return verdict_record(command, number, by, latest.decisions, latest.controls.values())
        models = [service.model for service in self._loop.declared().services]
        scope, lasting = _text(asked, "model"), _text(asked, "for")
        if not scope:
            raise UserError("model: '' is not allowed; allowed: a model, or * for all")
        return control_record(command, scope, by, lasting, models, latest.controls.values())

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not self._token:
            return _answer(403, f"commands are off: the controller has no {OPERATOR_TOKEN}")
        if not self._token.allows(request.headers.get("Authorization", "")):
            return _answer(401, "the operator's token is needed")
        if request.content_type != "application/json":
            return _answer(415, "Content-Type: only application/json is allowed")
        if (request.content_length or 0) > MOST_BYTES:
            return _answer(413, f"at most {MOST_BYTES} bytes")
        now_s = self._loop.clock.now_s()
        self._times = [at_s for at_s in self._times if now_s - at_s < 60.0]
        if len(self._times) >= _MOST_PER_MINUTE:
            return _answer(429, f"at most {_MOST_PER_MINUTE} commands a minute")
        self._times.append(now_s)
        return None


def _text(asked: dict[str, Any], key: str) -> str:
    value = asked.get(key, "")
    if not isinstance(value, str):
        raise UserError(f"{key}: {value!r} is not allowed; allowed: text")
    return value


def _answer(status: int, words: str) -> web.Response:
    body = write_value({"error": words})
    return web.Response(status=status, body=body, content_type="application/json")
