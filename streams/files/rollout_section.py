"""Read `rollout:` of `shoal.yaml`: how a changed version of a model replaces the running one."""

from __future__ import annotations

from autoscaler.domain.rollout_policy import COMPARED, SPARES, CanaryPolicy, RolloutPolicy
from autoscaler.domain.validation import InvalidValue
from streams.files import units
from streams.files.keys import Group, Key
from streams.files.units import Parser
from streams.files.yaml_tree import Section

STEP = Key(
    "step", units.share, "Share of the combos that one wave replaces, at least one combo.", "25%"
)
WATCH = Key(
    "watch",
    units.duration_between("1ms", "1d"),
    "A wave must serve this long before the next one begins.",
    "1m",
)
WITHIN = Key(
    "within",
    units.duration_between("1ms", "30d"),
    "After this time, waves use `max_disruption` without waiting for lower demand.",
    "6h",
)
SPARE = Key(
    "spare",
    units.word(*SPARES),
    "`rent` starts replacements on further rented nodes if no GPU is free. `none` rents nothing.",
    "rent",
)


def _canary_share(value: object) -> float:
    fraction = units.share(value)
    if not 0.001 <= fraction <= 0.5:
        raise InvalidValue("", value, "a share from 0.1% to 50%")
    return fraction


SHARE = Key(
    "share",
    Parser(_canary_share, "share, 0.1% to 50%", units.share.schema),
    "Most of the model's requests that the canary gets, up to its share of the capacity. A small "
    "share takes longer.",
    "50%",
)
COMPARE = Key(
    "compare",
    units.list_of(units.word(*COMPARED), "[errors, tpot]"),
    "Properties by which the first instance of a new version is compared with the former version. "
    "An empty list: no canary.",
    otherwise="`[errors, ttft, tpot, tokens]`",
)
CANARY_WITHIN = Key(
    "within",
    units.duration_between("1m", "30d"),
    "After this time without a verdict, the rollout continues.",
    "1h",
)
CANARY = Group(
    "Compares the first instance of a new version with the former version before further waves.",
    (SHARE, COMPARE, CANARY_WITHIN),
)
ROLLOUT = Group(
    "How a changed engine, image, argument, source, weight or adapter replaces running instances.",
    (STEP, WATCH, WITHIN, SPARE),
    {"canary": CANARY},
)


def read_rollout(section: Section | None, base: RolloutPolicy) -> RolloutPolicy:
    """`base` with the settings of `section`."""
    if section is None:
        return base
    found = RolloutPolicy(
        step=STEP.take_or(section, base.step),
        watch_s=WATCH.take_or(section, base.watch_s),
        within_s=WITHIN.take_or(section, base.within_s),
        spare=SPARE.take_or(section, base.spare),
        canary=_read_canary(section.section("canary"), base.canary),
    )
    ROLLOUT.finish(section)
    return found


def _read_canary(section: Section | None, base: CanaryPolicy | None) -> CanaryPolicy | None:
    """`base` with the settings of `section`; the section alone turns the canary on."""
    if section is None:
        return base
    known = base or CanaryPolicy()
    share = SHARE.take_or(section, known.share)
    compare = COMPARE.take_or(section, known.compare)
    within_s = CANARY_WITHIN.take_or(section, known.within_s)
    CANARY.finish(section)
    return CanaryPolicy(share, tuple(dict.fromkeys(compare)), within_s) if compare else None
