"""Events of a scenario as notes in the console's time line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import aiohttp

from topics.error_text import error_text

log = logging.getLogger(__name__)

_LIMIT = aiohttp.ClientTimeout(total=1.0)
_MOST = 500


@dataclass(frozen=True, slots=True)
class ConsoleNotes:
    """Sends notes to the console at `url`, "" while there is none, with an operator's token."""

    url: Callable[[], str]
    token: str

    async def send(self, texts: Iterable[str]) -> None:
        """Send `texts`. Without a token or an answer, they are left out."""
        found, url = list(texts), self.url()
        if not (found and url and self.token):
            return
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            async with aiohttp.ClientSession(timeout=_LIMIT, headers=headers) as session:
                for text in found:
                    note = {"text": text[:_MOST]}
                    async with session.post(f"{url}/v1/console/notes", json=note) as answer:
                        if answer.status != 200:
                            log.warning("console: a note was refused with HTTP %s", answer.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("console: no note of the scenario: %s", error_text(error, "no answer"))
