"""Keys of `models.NAME` in `shoal.yaml` that models with and without components have."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.domain.cluster import Mode
from autoscaler.domain.workload import Slo
from streams.files import units
from streams.files.keys import Group, Key
from streams.files.yaml_tree import Section

MODES = tuple(mode.value for mode in Mode)

TTFT = Key(
    "ttft",
    units.duration_s,
    "Limit of the time to first token of one request; for a pooling model, to its whole answer.",
)
TPOT = Key(
    "tpot",
    units.duration_s,
    "Limit of the mean time per output token of one request.",
    otherwise="required, except for pooling models",
)
SLO = Group("Latency limits of one request.", (TTFT, TPOT))

MIN = Key(
    "min",
    units.count(0, 100_000),
    "Least number of combos. 0 lets an idle model go to zero.",
    "1",
)
MAX = Key("max", units.count(1, 100_000), "Maximum number of combos.", otherwise="no limit")
REGIONS = Key(
    "regions",
    units.list_of(units.text, "[us-east]"),
    "Regions in which the model may run.",
    otherwise="every region",
)
PRIORITY = Key(
    "priority",
    units.count(0, 100),
    "Models with a higher number are served first if the fleet is too small.",
    "0",
)
MODE = Key(
    "mode",
    units.word(*MODES),
    "`recommend` only reports, `approve` waits for `shoal approve`, `act` changes the fleet.",
    otherwise="that of the file",
)
SHARE = Key(
    "share",
    units.number(0.0, 1e6),
    "Weight of the model if a trace without model names is replayed.",
    "1",
)
ZERO_AFTER = Key(
    "zero_after",
    units.duration_between("1ms", "7d"),
    "With `min: 0`: the last combo leaves after this time without a request.",
    otherwise="`scale_in_after`",
)


def read_slo(model: Section, pooling: bool = False) -> Slo:
    """The required SLO of a model. The limit of a pooling model is `ttft`, for its whole answer.
    ConfigError names line and key."""
    limits = model.section("slo", required=True)
    assert limits is not None  # noqa: S101  required
    ttft_s = TTFT.take(limits)
    tpot_s = TPOT.take_or(limits, ttft_s) if pooling else limits.take(TPOT.name, TPOT.parser)
    slo = Slo(ttft_s * 1000.0, tpot_s * 1000.0)
    SLO.finish(limits)
    return slo


def read_max(model: Section, least: int) -> int:
    """Maximum number of combos of a model, at least `least`; 0 = no limit."""
    return model.take(MAX.name, units.count(max(1, least), 100_000), 0)


def read_regions(model: Section, regions: Sequence[str]) -> tuple[str, ...]:
    """Regions in which a model may run, out of `regions`; () = all of them."""
    return model.take(REGIONS.name, units.list_of(units.word(*regions), "[us-east]"), ())
