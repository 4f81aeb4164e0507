"""Read the demand and fleet files of `shoal plan`, strictly.

YAML or JSON (a subset of YAML), one mapping per file:

demand: model -> {req_per_s: 14, input_tokens: 1155, output_tokens: 211}; without tokens, the
declared workload of the service counts. Models that the file does not name are not planned.

fleet: combo -> count, with the combo names of `shoal plan --json` and the `plans` topic. That JSON
itself is a fleet too: the one that it proposes.
   mini:a1@us-east/l40s/spot: 4
   "chat:2p4@us-east/h100/owned+d4@us-east/h100/owned": 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import orjson

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.planning.combo_names import parse_combo_id
from streams.files import units
from streams.files.workload_section import longer_than
from streams.files.yaml_tree import ConfigError, Section, read, read_text

_FLEET = "combos and their counts"
_TOKENS = units.number(1.0, 1e7)
_RATE = units.number(0.0, 1e9)
_COUNT = units.count(0, 1_000_000)


def load_demand(path: Path, cluster: Cluster) -> dict[str, Demand]:
    """Demand per model. ConfigError names file, line and key."""
    root, _ = read(path, "models and their req_per_s")
    demands = {}
    for model, section in root.children():
        _known_model(root, model, model, cluster)
        service = cluster.service(model)
        lengths = Lengths(
            section.take("input_tokens", _TOKENS, service.lengths.input_tokens),
            section.take("output_tokens", _TOKENS, service.lengths.output_tokens),
            prefix_hit=service.lengths.prefix_hit,
        )
        demands[model] = Demand(model, section.take("req_per_s", _RATE), lengths)
        section.finish()
        asked = "input_tokens" in section or "output_tokens" in section
        problem = longer_than(lengths, service.max_len_tokens) if asked else ""
        if problem:
            raise section.error("input_tokens", f"{problem} of {model}")
    if not demands:
        raise ConfigError(str(path), root.line, "", "no model is named")
    return demands


def with_workload(cluster: Cluster, demands: Mapping[str, Demand]) -> Cluster:
    """`cluster` with `demands` as declared workloads; models not in `demands` keep their own."""
    services = tuple(
        replace(s, req_per_s=demands[s.model].req_per_s, lengths=demands[s.model].lengths)
        if s.model in demands
        else s
        for s in cluster.services
    )
    return replace(cluster, services=services)


def load_fleet(path: Path, cluster: Cluster) -> dict[str, int]:
    """Count per combo id. ConfigError names file, line and key."""
    root = _counts(path)
    fleet = {}
    left = {pool.id: pool.max_nodes * pool.per_node for pool in cluster.pools}
    for combo_id in root:
        try:
            model, members = parse_combo_id(combo_id)
            _known_model(root, combo_id, model, cluster)
            for _, gpus, pool_id, _ in members:
                pool = cluster.pool(pool_id)
                if gpus not in (1, 2, 4, 8) or gpus > pool.largest_slice:
                    raise InvalidValue("GPUs", gpus, f"1, 2, 4 or 8, at most {pool.largest_slice}")
        except InvalidValue as error:
            problem = f"{error.value!r} is not allowed; allowed: {error.allowed}"
            raise root.error(combo_id, problem) from None
        fleet[combo_id] = root.take(combo_id, _COUNT)
        for _, gpus, pool_id, each in members:
            left[pool_id] -= gpus * each * fleet[combo_id]
            if left[pool_id] < 0:
                most = cluster.pool(pool_id).max_nodes
                raise root.error(combo_id, f"more than the {most} nodes that {pool_id} may have")
        _check_both(root, combo_id, cluster, left)
    return fleet


def _counts(path: Path) -> Section:
    """The counts by combo in a file. The JSON of `shoal plan` stands for the fleet that it
    proposes."""
    root, raw = read(path, _FLEET)
    if "strategy" not in root or not root.is_mapping("models"):
        return root
    try:
        counts = {
            one["combo"]: one["proposed"]
            for model in orjson.loads(raw)["models"].values()
            for one in model["combos"]
            if one["proposed"]
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = f"is neither {_FLEET} nor what shoal plan --json printed"
        raise ConfigError(str(path), 0, "", problem) from None
    return read_text(orjson.dumps(counts), str(path), _FLEET)


def _check_both(root: Section, combo_id: str, cluster: Cluster, left: dict[str, int]) -> None:
    """Refuse a fleet that exceeds a node limit shared by both markets of a pool. left: free GPUs by
    pool."""
    for (region, name), pools in cluster.pools_by_shared_limit().items():
        nodes = sum(p.max_nodes - left[p.id] // p.per_node for p in pools)
        most = pools[0].max_of_both
        if nodes > most:
            what = f"{nodes} nodes of {region}/{name}, on-demand and spot together"
            raise root.error(combo_id, f"{what}; at most {most}")


def _known_model(root: Section, key: str, model: str, cluster: Cluster) -> None:
    known = [service.model for service in cluster.services]
    if model not in known:
        near = get_close_matches(model, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "declared: " + ", ".join(known)
        raise root.error(key, f"no model of this name; {hint}")
