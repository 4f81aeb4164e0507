"""Files of the allocation benchmarks: instances (.npz) and plans (.json).

Owns reading and writing them with one clear refusal per fault. Knows nothing of solving.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.arrays import Floats, Ints
from loadtests.coral.instance import TemplateInstance
from loadtests.coral.placements import Placements


def read_instance(path: Path, scale_demand: float = 1.0) -> TemplateInstance:
    """The instance in `path`, its demand times `scale_demand`. InvalidValue or OSError if bad."""
    try:
        archive = np.load(path, allow_pickle=False)
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InvalidValue(str(path), "not an .npz file", "an allocation instance") from error
    if not hasattr(archive, "files"):
        raise InvalidValue(str(path), "a single array", "an allocation instance (.npz)")
    with archive:
        demand = _entry(path, archive, "demand_req_per_s").astype(np.float64)
        groups = range(len(demand))
        return TemplateInstance(
            price_usd_per_h=_entry(path, archive, "price_usd_per_h").astype(np.float64),
            available_nodes=_entry(path, archive, "available_nodes"),
            demand_req_per_s=demand * scale_demand,
            nodes=tuple(_entry(path, archive, f"nodes_{k}") for k in groups),
            throughput_req_per_s=tuple(
                _entry(path, archive, f"throughput_{k}").astype(np.float64) for k in groups
            ),
            start_penalty=float(_entry(path, archive, "K")),
        )


def _entry(path: Path, archive: Any, name: str) -> Any:
    if name not in archive.files:
        raise InvalidValue(f"{path}: {name}", "missing", "an array of that name")
    values = archive[name]
    if values.dtype.kind not in "fiu":
        raise InvalidValue(f"{path}: {name}", str(values.dtype), "numbers")
    return values


def read_plan(path: Path, instance: TemplateInstance) -> tuple[Ints, Floats | None]:
    """Rows (group, region, template, count) of a plan, and its multipliers if they fit."""
    try:
        plan = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InvalidValue(str(path), "not JSON", "a plan") from error
    if not isinstance(plan, dict) or not isinstance(plan.get("instances"), list):
        raise InvalidValue(f"{path}: instances", "missing", "a list of placements")
    regions = len(instance.price_usd_per_h)
    rows = []
    for i, entry in enumerate(plan["instances"]):
        where = f"{path}: instances[{i}]"
        if not isinstance(entry, dict):
            raise InvalidValue(where, entry, "an object")
        limits = {"group": len(instance.nodes), "region": regions, "template": None, "count": None}
        row: list[int] = []
        for name, limit in limits.items():
            value = entry.get(name)
            if name == "template":
                limit = len(instance.nodes[row[0]])
            low = 1 if name == "count" else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InvalidValue(f"{where}.{name}", value, f"a whole number from {low}")
            if limit is not None and value >= limit:
                raise InvalidValue(f"{where}.{name}", value, f"below {limit}")
            row.append(value)
        rows.append(row)
    mu = np.asarray(plan.get("mu", []), dtype=np.float64)
    usable = (
        mu.shape == instance.price_usd_per_h.shape and np.isfinite(mu).all() and (mu >= 0).all()
    )
    return np.array(rows, dtype=np.int64).reshape(-1, 4), mu if usable else None


def write_plan(path: Path, done: Placements, extra: dict[str, Any]) -> None:
    """The plan in the checker's form."""
    body = {
        "instances": [
            {"group": k, "region": r, "template": i, "count": n}
            for k, r, i, n in done.rows.tolist()
        ],
        "status": str(done.status),
        "cost_usd_per_h": done.cost_usd_per_h,
        "lower_bound_usd_per_h": done.lower_bound_usd_per_h,
        "gap": done.gap,
        "served_fraction": done.served_fraction.tolist(),
        "served_fraction_upper_bound": done.served_fraction_bound,
        "served_target": done.served_target,
        "shortfall_req_per_s": done.shortfall_req_per_s.tolist(),
        "mu": done.mu_usd_per_h.tolist(),
        "limits_hit": list(done.limits_hit),
        "reason": done.reason,
        **extra,
    }
    path.write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2))
