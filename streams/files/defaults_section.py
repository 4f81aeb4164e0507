"""Read `defaults:` of `shoal.yaml`: settings for models that do not set their own."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.schedule import Weekly
from streams.files import units
from streams.files.yaml_tree import Section

CAUTIOUS = "cautious"
CAPACITY = (CAUTIOUS, "predicted")
"""Values of `capacity`: plan with the lower end of a wide interval, or with the prediction."""


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


def read_defaults(section: Section | None, cautious: bool) -> Defaults:
    """Read the section. cautious: the default if the section sets no capacity."""
    start = Defaults(cautious=cautious)
    if section is None:
        return start
    found = over(section, start)
    section.finish()
    return found


def over(section: Section, base: Defaults) -> Defaults:
    """`base` with the settings that `section` sets; the caller handles other keys."""
    return Defaults(
        percentile=section.take("percentile", units.percentile, base.percentile),
        utilization=section.take("utilization", units.number(0.05, 1.0), base.utilization),
        spot=section.take("spot", units.share, base.spot),
        scale_in_after_s=section.take(
            "scale_in_after", units.duration_between("1s", "7d"), base.scale_in_after_s
        ),
        max_disruption=section.take("max_disruption", units.share, base.max_disruption),
        max_len=section.take("max_len", units.count(16, 100_000_000), base.max_len),
        timezone=section.take("timezone", _timezone, base.timezone),
        cautious=section.take("capacity", _cautious, base.cautious),
    )


def _cautious(value: object) -> bool:
    return units.word(*CAPACITY)(value) == CAUTIOUS


def _timezone(value: object) -> str:
    name = units.text(value)
    Weekly((), 0, 0, name).contains(0)
    return name
