"""Read `regions:` of `shoal.yaml`: pools for rent and owned pools."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.catalog_names import instance_type
from autoscaler.performance.mig_profiles import is_slice
from streams.files import units
from streams.files.name_rules import check_name
from streams.files.yaml_tree import ConfigError, Section


def read_pools(
    section: Section | None,
) -> tuple[tuple[Pool, ...], dict[str, str], dict[str, str]]:
    """Returns three values: the pools; the provisioning hook by pool; and the instance type by
    pool. The last two hold only pools that declare one."""
    assert section is not None  # noqa: S101  required by the caller
    pools: list[Pool] = []
    provision: dict[str, str] = {}
    instances: dict[str, str] = {}
    for region, declared in section.children():
        check_name(section, region)
        for name, pool in declared.children():
            check_name(declared, name)
            made = _pool(region, name, pool)
            hook = pool.take("provision", units.text, "")
            kind = pool.take("gpu", units.text)
            pool.finish()
            pools += made
            provision.update({one.id: hook for one in made if hook})
            instances.update({one.id: kind for one in made if instance_type(kind)})
    if not pools:
        raise ConfigError(section.file, section.line, section.path, "no pool is declared")
    return tuple(pools), provision, instances


def _pool(region: str, name: str, pool: Section) -> list[Pool]:
    named = pool.take("gpu", units.text)
    gpu = pool.take("gpu", lambda value: catalog.gpu(units.text(value)))
    carried = instance_type(named)
    per_node = pool.take("per_node", _slice_size, carried[1] if carried else 1)
    if carried and per_node != carried[1]:
        raise pool.error(
            "per_node", f"{per_node} is not allowed; allowed: {carried[1]}, of {named}"
        )
    if per_node != 1 and is_slice(gpu.name):
        raise pool.error(
            "per_node",
            f"{per_node} is not allowed; allowed: 1, since MIG slices have no link to each other",
        )
    price = units.number(0.0, 1e6)
    within, between = _network(pool)
    if within:
        gpu = replace(gpu, interconnect_gb_s=within)
    if pool.take("owned", units.flag, False):
        nodes = pool.take("nodes", units.count(1, 100_000))
        for key in ("price", "spot_price", "max", "max_spot", "provision_time"):
            if key in pool:
                raise pool.error(key, "an owned pool has none: it is always there and already paid")
        owned = Pool(region, name, gpu, per_node, nodes, Market.OWNED, 0.0, between_gb_s=between)
        return [owned]
    most = pool.take("max", units.count(0, 100_000))
    most_spot = pool.take("max_spot", units.count(0, most), most)
    provision_s = pool.take("provision_time", _up_to_half_a_day_s, 0.0)
    both = most if "price" in pool and "spot_price" in pool else 0
    made = [
        Pool(
            region,
            name,
            gpu,
            per_node,
            nodes,
            market,
            pool.take(key, price),
            max_of_both=both,
            between_gb_s=between,
            provision_s=provision_s,
        )
        for key, market, nodes in (
            ("price", Market.ON_DEMAND, most),
            ("spot_price", Market.SPOT, most_spot),
        )
        if key in pool
    ]
    if not made:
        raise ConfigError(
            pool.file,
            pool.line,
            pool.path,
            "price or spot_price (USD per node and hour) is missing",
        )
    # Take all keys of a pool, so that the error for a misspelt key can suggest each of them.
    pool.take("nodes", units.count(1, 100_000), 1)
    pool.take("price", price, 0.0)
    pool.take("spot_price", price, 0.0)
    return made


def _network(pool: Section) -> tuple[float, float]:
    """Bandwidth in 1e9 bytes/s between the GPUs of a node, and between nodes; 0 = not declared."""
    section = pool.section("network")
    if section is None:
        return 0.0, 0.0
    within = section.take("within", units.bandwidth_gb_s, 0.0)
    between = section.take("between", units.bandwidth_gb_s, 0.0)
    section.finish()
    return within, between


def _up_to_half_a_day_s(value: object) -> float:
    seconds = units.duration_s(value)
    if seconds > 43_200.0:
        raise InvalidValue("", value, "a duration of up to 12h")
    return seconds


def _slice_size(value: object) -> int:
    if value not in (1, 2, 4, 8) or isinstance(value, bool):
        raise InvalidValue("", value, "1, 2, 4 or 8")
    return int(str(value))
