"""`defaults:` of a `shoal.yaml`: what models inherit where they say nothing themselves.

Owns these keys, which models may set for themselves too. Knows no other section.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.schedule import Weekly
from streams.files import units
from streams.files.yamltree import Section


@dataclass(frozen=True, slots=True)
class Defaults:
    """What models inherit where they say nothing themselves."""

    percentile: float = 0.95
    utilization: float = 0.8
    spot: float = 0.0
    scale_in_after_s: float = 600.0
    max_disruption: float = 0.1
    max_len: int = 32_768
    timezone: str = "UTC"

    @classmethod
    def read(cls, section: Section | None, base: Defaults | None = None) -> Defaults:
        """What `section` sets, over `base`; with a base, unknown keys are left to the caller."""
        start = base or cls()
        if section is None:
            return start
        found = cls(
            percentile=section.take("percentile", units.percentile, start.percentile),
            utilization=section.take("utilization", units.number(0.05, 1.0), start.utilization),
            spot=section.take("spot", units.share, start.spot),
            scale_in_after_s=section.take(
                "scale_in_after", units.duration_s, start.scale_in_after_s
            ),
            max_disruption=section.take("max_disruption", units.share, start.max_disruption),
            max_len=section.take("max_len", units.count(16, 100_000_000), start.max_len),
            timezone=section.take("timezone", _timezone, start.timezone),
        )
        if base is None:
            section.finish()
        return found


def _timezone(value: object) -> str:
    name = units.text(value)
    Weekly((), 0, 0, name).holds(0)
    return name
