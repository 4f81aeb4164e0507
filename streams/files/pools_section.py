"""Read `regions:` of `shoal.yaml`: pools for rent and owned pools."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autoscaler.domain.cluster import Market, Pool
from autoscaler.performance import catalog
from autoscaler.performance.catalog_names import instance_type
from autoscaler.performance.mig_profiles import is_slice
from streams.files import units
from streams.files.keys import Group, Key, Named
from streams.files.kubernetes_section import KUBERNETES, KubernetesPool, read_kubernetes
from streams.files.name_rules import check_name
from streams.files.yaml_tree import ConfigError, Section

_PRICE = units.number(0.0, 1e6)
_NODES = units.count(0, 100_000)

GPU = Key(
    "gpu",
    units.text,
    "GPU type (H100, L40S, NVIDIA-L4), a cloud's instance type (p5.48xlarge) or a MIG slice "
    "(H100/1g.10gb).",
)
PER_NODE = Key(
    "per_node",
    units.count(1, 16),
    "GPUs of one node. An instance uses 1, 2, 4 or 8 of them, a number that divides them.",
    otherwise="1, or as many as the instance type has",
)
OWNED = Key("owned", units.flag, "Whether the nodes are always there and already paid.", "false")
NODES = Key(
    "nodes", units.count(1, 100_000), "Number of owned nodes.", otherwise="required if owned"
)
MAX = Key(
    "max",
    _NODES,
    "Maximum number of rented nodes, on-demand and spot together.",
    otherwise="required if rented",
)
MAX_SPOT = Key("max_spot", _NODES, "Maximum number of spot nodes among them.", otherwise="`max`")
PRICE = Key(
    "price", _PRICE, "On-demand price in USD per node and hour.", otherwise="no on-demand nodes"
)
SPOT_PRICE = Key(
    "spot_price", _PRICE, "Spot price in USD per node and hour.", otherwise="no spot nodes"
)
PROVISION_TIME = Key(
    "provision_time",
    units.duration_up_to("12h"),
    "Time from the request for a node until it can start an engine.",
    otherwise="0s",
)
PROVISION = Key(
    "provision",
    units.text,
    "Command that creates and deletes nodes.",
    otherwise="nodes are not created by Shoal",
)
WITHIN = Key(
    "within",
    units.bandwidth_gb_s,
    "Bandwidth per direction between the GPUs of a node.",
    otherwise="the GPU's data sheet",
)
BETWEEN = Key(
    "between",
    units.bandwidth_gb_s,
    "Bandwidth per direction between nodes. Prefill and decode on separate nodes need enough to "
    "transfer the KV cache.",
    otherwise="200Gbit/s, and plans that depend on it say so",
)
NETWORK = Group("Bandwidths of the nodes.", (WITHIN, BETWEEN))
POOL = Group(
    "Nodes of one kind: owned (`owned`, `nodes`) or rented (`max` and a price).",
    (
        GPU, PER_NODE, OWNED, NODES, MAX, MAX_SPOT, PRICE, SPOT_PRICE, PROVISION_TIME, PROVISION,
    ),
    {"network": NETWORK, "kubernetes": KUBERNETES},
)  # fmt: skip
REGIONS = Named("Pools by region.", Named("Pools of the region by name.", POOL))

_OWNED_HAS_NONE = "an owned pool has none: it is always there and already paid"
_RENTED_ONLY = (PRICE, SPOT_PRICE, MAX, MAX_SPOT, PROVISION_TIME)


@dataclass(slots=True)
class DeclaredPools:
    """The pools of a file. By pool id, for pools that declare one: the provisioning hook, the cloud
    instance type, and the settings on Kubernetes."""

    pools: tuple[Pool, ...] = ()
    provision: dict[str, str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    kubernetes: dict[str, KubernetesPool] = field(default_factory=dict)


def read_pools(section: Section | None) -> DeclaredPools:
    """Read all pools. ConfigError if none is declared."""
    assert section is not None  # noqa: S101  required by the caller
    declared_pools = DeclaredPools()
    pools: list[Pool] = []
    for region, declared in section.children():
        check_name(section, region)
        for name, pool in declared.children():
            check_name(declared, name)
            made = _pool(region, name, pool)
            hook = PROVISION.take_or(pool, "")
            kind = GPU.take(pool)
            kubernetes = read_kubernetes(pool, made)
            if kubernetes and hook:
                raise pool.error("provision", "a pool on Kubernetes has none: pods ask for nodes")
            POOL.finish(pool)
            pools += made
            declared_pools.provision.update({one.id: hook for one in made if hook})
            declared_pools.instances.update({one.id: kind for one in made if instance_type(kind)})
            declared_pools.kubernetes.update(kubernetes)
    if not pools:
        raise ConfigError(section.file, section.line, section.path, "no pool is declared")
    declared_pools.pools = tuple(pools)
    return declared_pools


def _pool(region: str, name: str, pool: Section) -> list[Pool]:
    named = GPU.take(pool)
    gpu = pool.take(GPU.name, lambda value: catalog.gpu(units.text(value)))
    carried = instance_type(named)
    per_node = PER_NODE.take_or(pool, carried[1] if carried else 1)
    if carried and per_node != carried[1]:
        raise pool.error(
            "per_node", f"{per_node} is not allowed; allowed: {carried[1]}, of {named}"
        )
    if per_node != 1 and is_slice(gpu.name):
        raise pool.error(
            "per_node",
            f"{per_node} is not allowed; allowed: 1, since MIG slices have no link to each other",
        )
    within, between = _network(pool)
    if within:
        gpu = replace(gpu, interconnect_gb_s=within)
    if OWNED.take(pool):
        nodes = NODES.take(pool)
        for key in _RENTED_ONLY:
            if key.name in pool:
                raise pool.error(key.name, _OWNED_HAS_NONE)
        owned = Pool(region, name, gpu, per_node, nodes, Market.OWNED, 0.0, between_gb_s=between)
        return [owned]
    if MAX.name not in pool and NODES.name in pool:
        raise pool.error(
            NODES.name, "a rented pool has max instead; an owned pool needs owned: true"
        )
    most = MAX.take(pool)
    most_spot = pool.take(MAX_SPOT.name, units.count(0, most), most)
    provision_s = PROVISION_TIME.take_or(pool, 0.0)
    both = most if PRICE.name in pool and SPOT_PRICE.name in pool else 0
    made = [
        Pool(
            region,
            name,
            gpu,
            per_node,
            nodes,
            market,
            key.take(pool),
            max_of_both=both,
            between_gb_s=between,
            provision_s=provision_s,
        )
        for key, market, nodes in (
            (PRICE, Market.ON_DEMAND, most),
            (SPOT_PRICE, Market.SPOT, most_spot),
        )
        if key.name in pool
    ]
    if not made:
        raise ConfigError(
            pool.file,
            pool.line,
            pool.path,
            "price or spot_price (USD per node and hour) is missing",
        )
    return made


def _network(pool: Section) -> tuple[float, float]:
    """Bandwidth in 1e9 bytes/s between the GPUs of a node, and between nodes; 0 = not declared."""
    section = pool.section("network")
    if section is None:
        return 0.0, 0.0
    within, between = WITHIN.take_or(section, 0.0), BETWEEN.take_or(section, 0.0)
    NETWORK.finish(section)
    return within, between
