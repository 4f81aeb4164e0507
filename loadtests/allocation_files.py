"""Files of the allocation benchmarks: problem instances (.npz) and plans (.json).

Each fault in a file raises an error that names it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.array_types import Floats, Ints
from loadtests.template_problem import TemplatePlan, TemplateProblem


def read_instance(path: Path, scale_demand: float = 1.0) -> TemplateProblem:
    """Read the instance in `path` and multiply its demand by `scale_demand`. Raises InvalidValue or
    OSError if the file is bad."""
    try:
        archive = np.load(path, allow_pickle=False)
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InvalidValue(str(path), "not an .npz file", "an allocation instance") from error
    if not hasattr(archive, "files"):
        raise InvalidValue(str(path), "a single array", "an allocation instance (.npz)")
    with archive:
        return instance_of(archive, str(path), scale_demand)


def instance_of(arrays: Any, source: str = "", scale_demand: float = 1.0) -> TemplateProblem:
    """The instance of named arrays. source: named in errors."""
    demand = _entry(source, arrays, "demand_req_per_s").astype(np.float64)
    groups = range(len(demand))
    return TemplateProblem(
        price_usd_per_h=_entry(source, arrays, "price_usd_per_h").astype(np.float64),
        available_nodes=_entry(source, arrays, "available_nodes"),
        demand_req_per_s=demand * scale_demand,
        nodes=tuple(_entry(source, arrays, f"nodes_{k}") for k in groups),
        throughput_req_per_s=tuple(
            _entry(source, arrays, f"throughput_{k}").astype(np.float64) for k in groups
        ),
        start_penalty=float(_entry(source, arrays, "K")),
    )


def _entry(path: str, archive: Any, name: str) -> Any:
    if name not in archive:
        raise InvalidValue(f"{path}: {name}", "missing", "an array of that name")
    values = archive[name]
    if values.dtype.kind not in "fiu":
        raise InvalidValue(f"{path}: {name}", str(values.dtype), "numbers")
    return values


def read_plan(path: Path, instance: TemplateProblem) -> Ints:
    """Rows (group, region, template, count) of a plan."""
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
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def write_plan(path: Path, plan: TemplatePlan, missing: Floats, extra: dict[str, Any]) -> None:
    """Write the plan in the format that the checker reads. missing: unserved
    requests/s by group.
    """
    result = plan.result
    body = {
        "instances": [
            {"group": k, "region": r, "template": i, "count": n}
            for k, r, i, n in plan.rows.tolist()
        ],
        "status": str(result.status),
        "cost_usd_per_h": result.cost_usd_per_h,
        "lower_bound_usd_per_h": result.lower_bound_usd_per_h,
        "gap": result.gap,
        "served_fraction": result.served_fraction.tolist(),
        "served_fraction_upper_bound": float(result.served_fraction_bound.min()),
        "served_target": result.served_target.tolist(),
        "shortfall_req_per_s": missing.tolist(),
        "mu": plan.node_price_usd_per_h.tolist(),
        "limits_hit": list(result.limits_hit),
        "reason": result.reason,
        **extra,
    }
    path.write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2))
