"""The reports of the leading controller on each model, from its `GET /v1/status`.

A standby, and a leader before its first decision, report nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from executors.kubernetes.object_cache import UNREADABLE
from topics.checks import InvalidValue
from topics.error_text import error_text

log = logging.getLogger(__name__)

READ_TOKEN = "SHOAL_READ_TOKEN"  # noqa: S105  the name of a variable
_LIMIT_S = 10.0
_MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class DecisionReport:
    """The last decision on a model. cause: a reason code, "" = none. at: domain time."""

    kind: str
    cause: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model. wanted, ready: number of combos. attained: share of the ended requests that met
    the SLO, None without any. level, codes: the verdict and its reason codes, most urgent first.
    text: the verdict for people. decision: None = not known."""

    model: str
    mode: str
    wanted: int
    ready: int
    usd_per_h: float
    attained: float | None
    level: str
    codes: tuple[str, ...]
    text: str
    decision: DecisionReport | None = None


def parse_reports(raw: Any) -> dict[str, ModelReport] | None:
    """The reports by model in a status; None if it is not from a leader that has decided. Raises
    one of `UNREADABLE` if it has another form."""
    if raw["leads"] is not True or raw["usd_per_h"] is None:
        return None
    decisions = {str(one["model"]): _decision(one) for one in raw.get("last_decisions", ())}
    return {str(one["model"]): _report(one, decisions) for one in raw["models"]}


def _decision(one: Mapping[str, Any]) -> DecisionReport:
    at = datetime.fromtimestamp(one["at_ms"] / 1000.0, UTC)
    return DecisionReport(str(one["kind"]), str(one["cause"]), str(one["reason"]), at)


def _report(one: Mapping[str, Any], decisions: Mapping[str, DecisionReport]) -> ModelReport:
    attained = one["attained"]
    return ModelReport(
        model=str(one["model"]),
        mode=str(one["mode"]),
        wanted=int(one["wanted"]),
        ready=int(one["ready"]),
        usd_per_h=float(one["usd_per_h"]),
        attained=None if attained is None else float(attained),
        level=str(one["level"]),
        codes=tuple(str(code) for code in one["conditions"]),
        text=": ".join(str(part) for part in (one["word"], one["remedy"]) if part),
        decision=decisions.get(str(one["model"])),
    )


class ControllerStatus:
    """Reads the status of the controller at `url`, as with `shoal status`. fault: the reason why
    the last read failed, "" = none."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self._url = f"{url.rstrip('/')}/v1/status"
        self._client = client
        self.fault = ""

    async def read(self) -> dict[str, ModelReport] | None:
        """The reports by model, None if no leader answers."""
        try:
            found = parse_reports(orjson.loads(await self._get()))
            fault = "" if found is not None else f"{self._url}: no leader answers"
        except (aiohttp.ClientError, InvalidValue, OSError, *UNREADABLE) as error:
            found, fault = None, f"{self._url}: {error_text(error)}"
        if fault and not self.fault:
            log.warning("no status of models from %s", fault)
        self.fault = fault
        return found

    async def _get(self) -> bytes:
        # A new connection each time, because behind a Service another one may reach the leader.
        headers = {"Connection": "close"}
        token = read_token(os.environ)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        timeout = aiohttp.ClientTimeout(total=_LIMIT_S)
        async with self._client.get(
            self._url, headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                hint = f"; set {READ_TOKEN} or {READ_TOKEN}_FILE" if answer.status == 401 else ""
                raise InvalidValue("status", answer.status, f"200{hint}")
            body = bytearray()
            async for part in answer.content.iter_chunked(1 << 16):
                body += part
                if len(body) > _MOST_BYTES:
                    raise InvalidValue("size", len(body), f"at most {_MOST_BYTES} bytes")
            return bytes(body)


def read_token(environ: Mapping[str, str]) -> str:
    """The controller's token for reads, "" = none. Its file is read each time, so it may rotate."""
    path = environ.get(f"{READ_TOKEN}_FILE", "")
    return Path(path).read_text().strip() if path else environ.get(READ_TOKEN, "").strip()
