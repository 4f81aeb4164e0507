"""Read `unmanaged` of a model: the hardware of a server that Shoal did not start."""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.domain.cluster import Pool
from autoscaler.domain.workload import Phase
from autoscaler.planning.combo_names import combo_id
from streams.files import units
from streams.files.keys import Group, Key
from streams.files.yaml_tree import Section

POOL = Key("pool", units.text, "Pool of the server: REGION/POOL/MARKET.")
GPUS = Key("gpus", units.count(1, 8), "GPUs of one server.", "1")
UNMANAGED = Group(
    "Hardware of one server of this model that Shoal did not start and never changes.",
    (POOL, GPUS),
)


def read_unmanaged(section: Section | None, model: str, pools: Iterable[Pool]) -> str:
    """Combo name of a server that Shoal did not start, "" if none is declared."""
    if section is None:
        return ""
    known = {pool.id: pool for pool in pools}
    pool = known[section.take(POOL.name, units.word(*known))]
    gpus = section.take(GPUS.name, units.count(1, pool.per_node), 1)
    UNMANAGED.finish(section)
    return combo_id(model, [(Phase.AGGREGATED, gpus, pool.id, 1)])
