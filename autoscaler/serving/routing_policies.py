"""How requests are spread: what an operator chooses between, and what a request asks for.

Owns the choices and their names. `serving.routing` carries them out, for gateways and for the
simulator alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Between(StrEnum):
    """How combos share the requests.

    GOODPUT: in proportion to what each can serve within the SLO (Cauchy 3.4.1). TOKENS: the same
    shares, counted in tokens and not in requests, so that a few long prompts on one combo are made
    up for. EQUAL: the same for all (the basic round robin, to compare with).
    """

    GOODPUT = "goodput"
    TOKENS = "tokens"
    EQUAL = "equal"


class Inside(StrEnum):
    """Which instance of a combo takes a request.

    OPPORTUNISTIC (Cauchy 3.4.2): by default prefill here and decode at the least loaded; while one
    side is busy, an idle instance of the other takes the whole request in place. Decode is busy
    with as many requests as it decodes within the SLO, where routes tell: what is decoded beside
    other prompts is slower, which is what the pair is there to avoid. ROUND_ROBIN:
    always prefill here and decode there, in turn. PREFIX: as OPPORTUNISTIC, but prompts that begin
    alike go to the same instance while it is not loaded much above the others, so that its prefix
    cache serves them.
    """

    OPPORTUNISTIC = "opportunistic"
    ROUND_ROBIN = "round-robin"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class Policy:
    """The two choices."""

    between: Between = Between.GOODPUT
    inside: Inside = Inside.OPPORTUNISTIC


class Want(NamedTuple):
    """What a request asks for. tokens: of prompt and answer, roughly. single: one prompt and one
    answer; anything else cannot be handed over and is served in place. prefix: a number that
    prompts with a common beginning share. kind: which of the routes' types it is, "" = none."""

    tokens: int = 1
    single: bool = True
    prefix: int = 0
    kind: str = ""


ANY = Want()
DEFAULT = Policy()
