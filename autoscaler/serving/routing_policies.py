"""The policies that spread requests over combos and instances, and the request traits that they
use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class AcrossCombos(StrEnum):
    """How combos share the requests.

    GOODPUT: in proportion to each combo's throughput within the SLO (Cauchy 3.4.1). TOKENS: in the
    same proportions of tokens instead of requests, so that a combo with a few long prompts gets
    fewer requests. EQUAL: equal shares (basic round robin, for comparison).
    """

    GOODPUT = "goodput"
    TOKENS = "tokens"
    EQUAL = "equal"


class WithinCombo(StrEnum):
    """The rule that chooses the instance of a combo for a request.

    OPPORTUNISTIC (Cauchy 3.4.2): by default a prefill instance prefills and the least loaded decode
    instance decodes. While one phase is busy, an idle instance of the other phase takes the whole
    request. If the routes give slots, a decode instance is busy when it holds as many requests as
    it can decode within the SLO. ROUND_ROBIN: prefill and decode are always separate, and instances
    take turns. PREFIX: like OPPORTUNISTIC, but a prompt goes to the instance that has the longest
    beginning of it in its prefix cache, unless the load outweighs that (`prefix_index`). It counts
    for all combos of whole instances together.
    """

    OPPORTUNISTIC = "opportunistic"
    ROUND_ROBIN = "round-robin"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """The operator's choice: the policy across combos and the policy within a combo."""

    between: AcrossCombos = AcrossCombos.GOODPUT
    inside: WithinCombo = WithinCombo.OPPORTUNISTIC


class RequestTraits(NamedTuple):
    """The traits of a request that routing uses.

    tokens: estimated sum of prompt and answer. single: whether the request has one prompt and one
    answer; other requests cannot be handed over and stay on one instance. blocks: chained hashes of
    the prompt's blocks, for PREFIX; equal beginnings have equal hashes. kind: the request's class
    in the routes, "" = none. adapter: the LoRA adapter that the request names, "" = none.
    """

    tokens: int = 1
    single: bool = True
    blocks: Sequence[int] = ()
    kind: str = ""
    adapter: str = ""


ANY = RequestTraits()
DEFAULT = RoutingPolicy()
