"""Read `rollout:` of `shoal.yaml`: how a changed version of a model replaces the running one."""

from __future__ import annotations

from autoscaler.domain.rollout_policy import SPARES, RolloutPolicy
from streams.files import units
from streams.files.keys import Group, Key
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
ROLLOUT = Group(
    "How a changed engine, image, argument, source, weight or adapter replaces running instances.",
    (STEP, WATCH, WITHIN, SPARE),
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
    )
    ROLLOUT.finish(section)
    return found
