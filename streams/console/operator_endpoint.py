"""Operator commands over HTTP. They write the same signed records as `shoal pause`, `approve` and
so on.

The name of a command comes from the sender's token or proxy. Any controller takes commands, also a
standby: the order of the topic decides which of two commands was first, and this endpoint answers
after it has read its own command back. Only the leader knows at that moment whether a proposal is
still open; a standby waits for the leader's decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from autoscaler.apply.approvals import answered_version
from autoscaler.domain.validation import InvalidValue
from streams.files.user_errors import UserError
from streams.health.operators import OPERATORS_FILE, Identity, Operators
from streams.health.tokens import OPERATOR_TOKEN
from streams.loop.tick_loop import Loop
from streams.operator_commands import (
    COMMANDS,
    VERDICTS,
    Conflict,
    Signed,
    control_record,
    done_words,
    new_command_id,
    refuse_silence,
    taken,
    too_late,
    verdict_record,
)
from topics.checks import is_name
from topics.codec import write_value
from topics.controls import ALL_MODELS
from topics.error_text import error_text
from topics.reason_codes import ReasonCode
from topics.records import Control, Decision

log = logging.getLogger(__name__)

MOST_BYTES = 8192
MOST_NOTE = 500
"""Characters of a note."""
_MOST_PER_MINUTE = 600
_ANSWER_S = 5.0
_LOOK_S = 0.05
_UNANSWERED = frozenset({ReasonCode.PROPOSAL_EXPIRED, ReasonCode.PROPOSAL_WITHDRAWN})
"""Codes of decisions that end a proposal without its answer."""
_SWEPT_AT_ONCE = 50

Publish = Callable[[Control], Awaitable[None]]
Forget = Callable[[str], Awaitable[None]]


class OperatorEndpoint:
    """HTTP endpoint for commands of operators. publish: signs a record, writes it, and returns when
    the broker has it. forget: deletes the record of a Kafka key from the topic; None keeps all.
    answer_s: real seconds for a command to be written and read back."""

    def __init__(
        self,
        loop: Loop,
        operators: Operators,
        publish: Publish,
        forget: Forget | None = None,
        answer_s: float = _ANSWER_S,
    ) -> None:
        self._loop = loop
        self._operators = operators
        self._publish = publish
        self._forget = forget
        self._answer_s = answer_s
        self._times: dict[str, list[float]] = defaultdict(list)
        self._sweeping: asyncio.Future[None] | None = None

    async def handle(self, request: web.Request) -> web.Response:
        """Answer POST /v1/controls: {"said": ...}, or {"error": ...} with 400 or higher."""
        read = await self._read(request)
        if isinstance(read, web.Response):
            return read
        status, found = await self.give(*read)
        return web.Response(status=status, body=write_value(found), content_type="application/json")

    async def note(
        self, request: web.Request, keep: Callable[[str, str, str], None]
    ) -> web.Response:
        """Answer POST /v1/console/notes. keep: stores model, name of the operator, and text."""
        read = await self._read(request)
        if isinstance(read, web.Response):
            return read
        asked, sender = read
        try:
            if not isinstance(asked, dict):
                raise UserError("body: only a JSON object is allowed")
            model, text = _text(asked, "model") or ALL_MODELS, _text(asked, "text").strip()
            declared = [service.model for service in self._loop.declared().services]
            if model not in (ALL_MODELS, *declared):
                raise UserError(f"model: {model!r} is not declared")
            if not 0 < len(text) <= MOST_NOTE or not text.isprintable():
                raise UserError(f"text: allowed: 1 to {MOST_NOTE} printable characters")
        except UserError as error:
            return _answer(400, str(error))
        keep(model, sender.name, text)
        return web.Response(body=write_value({"said": "noted"}), content_type="application/json")

    async def _read(self, request: web.Request) -> tuple[Any, Identity] | web.Response:
        """The JSON value and the operator who sends it, or the refusal."""
        sender = self._sender(request)
        if isinstance(sender, web.Response):
            return sender
        try:
            return orjson.loads(await request.clone(client_max_size=MOST_BYTES).read()), sender
        except web.HTTPRequestEntityTooLarge:
            return _answer(413, f"at most {MOST_BYTES} bytes")
        except web.RequestPayloadError:
            return _answer(400, "body: cannot be decompressed as its Content-Encoding says")
        except orjson.JSONDecodeError as error:
            return _answer(400, f"body: not JSON ({error})")

    async def give(self, asked: Any, sender: Identity) -> tuple[int, dict[str, Any]]:
        """Give the command `asked` in the name of `sender`. Returns the HTTP status and body."""
        latest = self._loop.latest
        try:
            await self._decision_read(asked)
            record, said = self._record(asked, sender)
            in_force = latest.controls.get(record.key)
            if in_force is record:
                return _success(f"{said} (already)", record)  # the sender repeats its own command
            if record.topic_key in latest.commands.outdated:  # it may be deleted at any time
                raise taken(record, in_force, self._loop.clock.now_ms())
        except Conflict as conflict:
            return _refused(conflict)
        except (UserError, InvalidValue) as error:
            return 400, {"error": str(error)}
        decided: asyncio.Future[Conflict | None] = asyncio.get_running_loop().create_future()

        def read_back(in_force: Control) -> None:
            # In the same step as the record is read, before a tick can act on it.
            if not decided.done():
                decided.set_result(self._conflict(record, in_force))

        latest.commands.waiting[record.command_id] = read_back
        try:
            async with asyncio.timeout(self._answer_s):
                await self._publish(record)
                late = await decided
        except Exception as error:
            log.warning("console: a command is not confirmed: %s", error_text(error))
            words = (
                "the broker did not confirm the command, which may still take effect; send it "
                f"again with the id {record.command_id}"
            )
            return 503, {"error": words, "id": record.command_id}
        finally:
            latest.commands.waiting.pop(record.command_id, None)
            self._sweep()
        if late is not None:
            return _refused(late)
        log.info("console: %s by %s", said, record.who)
        if record.kind == "verdict" and not self._loop.leads():
            return await self._confirmed(record, said)
        return _success(said, record)

    async def _decision_read(self, asked: Any) -> None:
        """Wait until the decision with the proposal that `asked` answers has been read. The leader
        shows a proposal before it reads it back, and a standby reads late. The leader waits for no
        other number."""
        if not isinstance(asked, dict) or asked.get("command") not in VERDICTS:
            return
        number, token = asked.get("proposal"), asked.get("token")
        for _ in range(int(self._answer_s / _LOOK_S)):
            if self._loop.leads() and not self._is_open(number, token):
                return
            decisions = reversed(self._loop.latest.decisions)
            if any(d.number == number and token in (None, d.leader_token) for d in decisions):
                return
            await asyncio.sleep(_LOOK_S)

    def _is_open(self, number: Any, token: Any) -> bool:
        """Whether a proposal of this leader, or an earlier version of it, has this number."""
        proposals = [one.advisory.proposal for one in self._loop.state.models.values()]
        versions = [version for one in proposals if one is not None for version in one.versions]
        return any(v.number == number and token in (None, v.leader_token) for v in versions)

    async def close(self) -> None:
        """Stop deleting old commands."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    def _record(self, asked: Any, sender: Identity) -> tuple[Control, str]:
        """The record of a command. UserError: a field is missing or invalid."""
        if not isinstance(asked, dict):
            raise UserError("body: not a JSON object")
        command, why = _text(asked, "command"), _text(asked, "why").strip()
        if command not in COMMANDS:
            raise UserError(f"command: {command!r} is not allowed; allowed: {', '.join(COMMANDS)}")
        refuse_silence(command, why, "why")
        command_id = _text(asked, "id") or new_command_id()
        if not is_name(command_id) or len(command_id) > 64 or "/" in command_id:
            raise UserError(f"id: {command_id[:80]!r} is not allowed; allowed: 1 to 64 letters, "
                            "digits or ._:@+-")  # fmt: skip
        latest, at_ms = self._loop.latest, self._loop.clock.now_ms()
        by = Signed(sender.name, why, at_ms, command_id, sender.is_person)
        if command in VERDICTS:
            number, token = _number(asked, "proposal", 1), _number(asked, "token", 0)
            if number is None:
                raise UserError("proposal: is missing; allowed: a number from 1")
            return verdict_record(
                command,
                number,
                by,
                latest.decisions,
                latest.controls.values(),
                token,
                _text(asked, "for"),
            )
        models = [service.model for service in self._loop.declared().services]
        scope, lasting = _text(asked, "model"), _text(asked, "for")
        if not scope:
            raise UserError("model: '' is not allowed; allowed: a model, or * for all")
        expected = _number(asked, "version", 0)
        return control_record(
            command, scope, by, lasting, models, latest.controls.values(), expected
        )

    def _conflict(self, record: Control, in_force: Control) -> Conflict | None:
        """The reason why `record`, which was read back, has no effect; None if it has."""
        now_ms = self._loop.clock.now_ms()
        if in_force.command_id != record.command_id:
            return taken(record, in_force, now_ms)
        if record.kind != "verdict" or not self._loop.leads():
            return None
        model = self._loop.state.models.get(record.scope)
        open_ = model.advisory.proposal if model is not None else None
        place = record.leader_token, record.proposal
        versions = open_.versions if open_ is not None else ()
        if open_ is not None and any((v.leader_token, v.number) == place for v in versions):
            _, first = answered_version(open_, self._loop.latest.controls)
            is_first = first is None or first.command_id == record.command_id
            return None if is_first else taken(record, first, now_ms)
        return self._too_late(record) or Conflict(f"#{record.proposal}: is no longer open")

    def _too_late(self, record: Control) -> Conflict | None:
        proposal = self._proposal(record)
        if proposal is None:
            return None
        return too_late(proposal, self._loop.latest.decisions, self._loop.clock.now_ms())

    def _proposal(self, record: Control) -> Decision | None:
        place = record.leader_token, record.proposal
        found = (d for d in self._loop.latest.decisions if (d.leader_token, d.number) == place)
        return next(found, None)

    async def _confirmed(self, record: Control, said: str) -> tuple[int, dict[str, Any]]:
        """The answer of a standby: the leader's decision about the proposal."""
        for number in range(int(self._answer_s / _LOOK_S)):
            decision = self._loop.latest.commands.ended_proposals.get(record.proposal)
            if decision is not None and decision.leader_token < record.leader_token:
                decision = None  # of a proposal of this number before the topics were lost
            if decision is not None and not _UNANSWERED.intersection(decision.codes):
                return _success(said, record)
            if decision is not None:
                return _refused(Conflict(f"#{record.proposal}: {decision.reason}"))
            late = self._too_late(record) if number % 10 == 9 else None
            if late is not None:
                return _refused(late)
            await asyncio.sleep(_LOOK_S)
        _, body = _success(f"{said}; the leader has not confirmed it yet", record)
        return 202, body

    def _sweep(self) -> None:
        """Begin to delete commands that are not in force, so that the topic stays small."""
        outdated = self._loop.latest.commands.outdated
        if self._forget is None or not outdated or (self._sweeping and not self._sweeping.done()):
            return
        keys = list(outdated)[:_SWEPT_AT_ONCE]
        self._sweeping = asyncio.ensure_future(self._forget_all(keys, self._forget))

    async def _forget_all(self, keys: list[str], forget: Forget) -> None:
        try:
            outdated = self._loop.latest.commands.outdated
            for key in [key for key in keys if key in outdated]:
                async with asyncio.timeout(self._answer_s):
                    await forget(key)
        except Exception as error:  # the next command tries again
            log.warning("console: old commands are not deleted: %s", error_text(error))

    def _sender(self, request: web.Request) -> Identity | web.Response:
        """The operator who sends `request`, or the refusal."""
        if not self._operators:
            return _answer(
                403, f"commands are off: the controller has no {OPERATORS_FILE} or {OPERATOR_TOKEN}"
            )
        headers = request.headers
        named = self._operators.sent_name(headers)
        found = self._operators.identify(
            headers.get("Authorization", ""), named, request.remote or ""
        )
        if found is None:
            return _answer(401, "an operator's token is needed")
        if not found.may_operate:
            return _answer(403, f"{found.name} may read only")
        if request.content_type != "application/json":
            return _answer(415, "Content-Type: only application/json is allowed")
        if (request.content_length or 0) > MOST_BYTES:
            return _answer(413, f"at most {MOST_BYTES} bytes")
        now_s = self._loop.clock.now_s()
        times = [at_s for at_s in self._times[found.name] if now_s - at_s < 60.0]
        self._times[found.name] = times
        if len(times) >= _MOST_PER_MINUTE:
            return _answer(429, f"at most {_MOST_PER_MINUTE} commands a minute")
        times.append(now_s)
        return found


def _text(asked: dict[str, Any], key: str) -> str:
    value = asked.get(key, "")
    if not isinstance(value, str):
        raise UserError(f"{key}: {value!r} is not allowed; allowed: text")
    return value


def _number(asked: dict[str, Any], key: str, least: int) -> int | None:
    """The number at `key`; None if it is absent."""
    value = asked.get(key)
    if value is not None and (type(value) is not int or value < least):
        raise UserError(f"{key}: {value!r} is not allowed; allowed: a number from {least}")
    return value


def _success(said: str, record: Control) -> tuple[int, dict[str, Any]]:
    more = {"who": record.who, "version": record.version, "id": record.command_id}
    return 200, {"said": said, **more}


def _refused(conflict: Conflict) -> tuple[int, dict[str, Any]]:
    """409 with the command that was first, if there was one."""
    found: dict[str, Any] = {"error": str(conflict)}
    first = conflict.first
    if first is not None:
        found["first"] = {
            "who": first.who, "did": done_words(first), "why": first.why, "at": first.at_ms,
            "version": first.version, "id": first.command_id,
        }  # fmt: skip
    return 409, found


def _answer(status: int, words: str) -> web.Response:
    body = write_value({"error": words})
    return web.Response(status=status, body=body, content_type="application/json")
