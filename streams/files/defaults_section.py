"""Read `defaults:` of `shoal.yaml`: settings for models that do not set their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autoscaler.domain.rollout_policy import RolloutPolicy
from autoscaler.domain.schedule import Weekly
from streams.files import units
from streams.files.keys import Group, Key
from streams.files.rollout_section import ROLLOUT, read_rollout
from streams.files.units import Parser
from streams.files.yaml_tree import Section

CAUTIOUS = "cautious"
CAPACITY = (CAUTIOUS, "predicted")
"""Values of `capacity`: plan with the lower end of a wide interval, or with the
prediction itself.
"""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Settings for models that do not set their own."""

    percentile: float = 0.95
    utilization: float = 0.85
    spot: float = 0.0
    scale_in_after_s: float = 600.0
    max_disruption: float = 0.1
    max_len: int = 32_768
    timezone: str = "UTC"
    cautious: bool = True
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)


def _cautious(value: object) -> bool:
    return units.word(*CAPACITY)(value) == CAUTIOUS


def _timezone(value: object) -> str:
    name = units.text(value)
    Weekly((), 0, 0, name).contains(0)
    return name


PERCENTILE = Key(
    "percentile",
    units.percentile,
    "Share of requests that must meet the SLO. Capacity is sized for it.",
    "95",
)
UTILIZATION = Key(
    "utilization",
    units.number(0.05, 1.0),
    "Demand uses at most this share of the capacity.",
    "0.85",
)
SPOT = Key(
    "spot",
    units.share,
    "At most this share of the needed capacity is on spot nodes.",
    "0",
)
CAPACITY_KEY = Key(
    "capacity",
    Parser(_cautious, "`cautious` or `predicted`", {"enum": list(CAPACITY)}),
    "`cautious` plans with the lower end of a prediction's interval if the interval is wide.",
    otherwise="`cautious`; `predicted` in `shoal up`, `backtest` and simulations",
)
SCALE_IN_AFTER = Key(
    "scale_in_after",
    units.duration_between("1s", "7d"),
    "An excess of capacity must last this long before it is removed. New instances stay this long.",
    "10m",
)
MAX_DISRUPTION = Key(
    "max_disruption",
    units.share,
    "Share of the ready capacity that may leave at the same time. One combo may always leave.",
    "10%",
)
MAX_LEN = Key(
    "max_len",
    units.count(16, 100_000_000),
    "Longest request in tokens, prompt and answer together. Every instance must hold it. The "
    "context of a model limits the default.",
    "32768",
)
TIMEZONE = Key(
    "timezone",
    Parser(_timezone, "IANA name", {"type": "string"}),
    "Time zone of the weekly windows of models, such as Europe/Berlin.",
    "UTC",
)
DEFAULTS = Group(
    "Settings for all models. A model may set its own.",
    (
        PERCENTILE, UTILIZATION, SPOT, CAPACITY_KEY, SCALE_IN_AFTER, MAX_DISRUPTION, MAX_LEN,
        TIMEZONE,
    ),
    {"rollout": ROLLOUT},
)  # fmt: skip


def read_defaults(section: Section | None, cautious: bool) -> Defaults:
    """Read the section. cautious: the default if the section sets no capacity."""
    start = Defaults(cautious=cautious)
    if section is None:
        return start
    rollout = read_rollout(section.section("rollout"), start.rollout)
    defaults = replace(over(section, start), rollout=rollout)
    DEFAULTS.finish(section)
    return defaults


def over(section: Section, base: Defaults) -> Defaults:
    """`base` with the settings that `section` sets; the caller handles other keys."""
    return Defaults(
        percentile=PERCENTILE.take_or(section, base.percentile),
        utilization=UTILIZATION.take_or(section, base.utilization),
        spot=SPOT.take_or(section, base.spot),
        scale_in_after_s=SCALE_IN_AFTER.take_or(section, base.scale_in_after_s),
        max_disruption=MAX_DISRUPTION.take_or(section, base.max_disruption),
        max_len=MAX_LEN.take_or(section, base.max_len),
        timezone=TIMEZONE.take_or(section, base.timezone),
        cautious=CAPACITY_KEY.take_or(section, base.cautious),
        rollout=base.rollout,
    )
