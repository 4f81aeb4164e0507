"""One fault of the chaos test."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadtests.chaos.run import Chaos

Act = Callable[["Chaos", random.Random], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. lines: lines of the table of promises that it tests. lasts_s: shortest and longest
    duration. limit_s: longest time from its end until the stack is healthy. loses: permitted
    failures during the fault as text; "" for none. Flags: quiet: gives no reason to start or remove
    an instance. real: needs a real broker. killable: needs a broker that restarts after a kill.
    leads: removes the leader.
    """

    name: str
    lines: str
    begin: Act
    end: Act | None = None
    lasts_s: tuple[float, float] = (0.0, 0.0)
    limit_s: float = 10.0
    loses: str = ""
    quiet: bool = True
    real: bool = False
    killable: bool = False
    leads: bool = False
