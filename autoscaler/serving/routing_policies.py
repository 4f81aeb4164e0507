"""How requests are spread over combos and instances, and the traits of a request that decide it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class AcrossCombos(StrEnum):
    """How combos share the requests.

    GOODPUT: in proportion to each combo's throughput within the SLO (Cauchy 3.4.1). TOKENS: the
    same shares, counted in tokens, so that a few long prompts on one combo are compensated. EQUAL:
    equal shares (basic round robin, for comparison).
    """

    GOODPUT = "goodput"
    TOKENS = "tokens"
    EQUAL = "equal"


class WithinCombo(StrEnum):
    """Which instance of a combo takes a request.

    OPPORTUNISTIC (Cauchy 3.4.2): by default a prefill instance prefills and the least loaded decode
    instance decodes. While one side is busy, an idle instance of the other side takes the whole
    request. A decode instance is busy with as many requests as it can decode within the SLO, if the
    routes say so. ROUND_ROBIN: always prefill and decode apart, in rotation. PREFIX: as
    OPPORTUNISTIC, but prompts with the same beginning go to the same instance unless it is loaded
    much above the others, so that its prefix cache serves them.
    """

    OPPORTUNISTIC = "opportunistic"
    ROUND_ROBIN = "round-robin"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """The two choices of an operator."""

    between: AcrossCombos = AcrossCombos.GOODPUT
    inside: WithinCombo = WithinCombo.OPPORTUNISTIC


class RequestTraits(NamedTuple):
    """The traits of a request that routing looks at. tokens: of prompt and answer, estimated.
    single: one prompt and one answer; other requests cannot be handed over and stay on one
    instance. prefix: a number shared by prompts with the same beginning. kind: its class in the
    routes, "" = none."""

    tokens: int = 1
    single: bool = True
    prefix: int = 0
    kind: str = ""


ANY = RequestTraits()
DEFAULT = RoutingPolicy()
