"""Who leads: a claim is appended, and its place in the topic orders leaders.

Owns the claim and the rule "the highest claim leads". There is no election and no lease here yet:
a controller that sees a higher claim stops acting and watches.
"""

from __future__ import annotations

import uuid
from typing import Any

from streams.clock import Clock
from streams.controller.latest import Latest
from topics.codec import encode
from topics.records import Leadership
from topics.table import LEADERSHIP, key_of


async def claim(producer: Any, prefix: str, controller: str, clock: Clock) -> int:
    """Append a claim; its leader token, offset + 1. Raises what the producer raises."""
    record = Leadership(controller, uuid.uuid4().hex, "claim", clock.now_ms())
    sent = await producer.send_and_wait(
        LEADERSHIP.wire_name(prefix), encode(record), key=key_of(record)
    )
    return int(sent.offset) + 1


def leads(latest: Latest, token: int) -> bool:
    """Whether the claim with `token` is the highest that was seen."""
    return latest.highest_claim[0] <= token
