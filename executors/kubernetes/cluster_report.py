"""`python -m executors.kubernetes.cluster_report WHAT`: reports on a cluster.

`pools` prints the section `regions:` for the GPU nodes of the cluster, and for those that Karpenter
may add, `serving` the pods that serve by model, role and pool, `availability` and `prices` the
feeds of `shoal feed`. With `--serve` `availability`, `prices` and `serving` are served over HTTP;
each request reads the cluster again. Only `release` writes: it frees the pods of other owners that
mode `scale` claimed, and prints their names.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from aiohttp import web
from aiohttp.http import HttpVersion11

from executors.kubernetes.cluster_supply import (
    available_nodes,
    empty_pools,
    found_pools,
    node_prices,
    pools_yaml,
)
from executors.kubernetes.device_claims import parse_device_claim
from executors.kubernetes.kube_client import KubeApi, KubeClient, Manifest
from executors.kubernetes.kube_errors import Forbidden, KubeError, NotFound
from executors.kubernetes.kube_kinds import (
    NODE,
    NODE_OVERLAY,
    NODE_POOL,
    POD,
    RESOURCE_CLAIM,
    SCALABLE,
    Kind,
    parse_kind,
)
from executors.kubernetes.kubernetes_config import KubePool, parse_kube_pool
from executors.kubernetes.leftover_labels import release_pods
from executors.kubernetes.node_claims import parse_node_pool, parse_overlay
from executors.kubernetes.node_view import NodeView, parse_node
from executors.kubernetes.object_cache import UNREADABLE
from executors.kubernetes.pod_view import PodView, parse_pod
from executors.kubernetes.serving_counts import count_serving
from executors.kubernetes.workload_view import WorkloadView, parse_workload
from topics.checks import InvalidValue, count
from topics.http_origin import HostRule

T = TypeVar("T")

SERVED = ("availability", "prices", "serving")
REPORTS = ("pools", "release", *SERVED)


async def report(
    what: str,
    api: KubeApi,
    pools: Mapping[str, KubePool],
    per_node: Mapping[str, int],
    kinds: Sequence[Kind] = SCALABLE,
) -> str:
    """The report as text. kinds: of workloads. Raises KubeError if a required right is missing."""
    if what == "release":
        return "".join(f"{name}\n" for name in await release_pods(api))
    nodes = await _all(api, NODE, parse_node)
    if what == "pools":
        node_pools = await _optional(api, NODE_POOL, parse_node_pool)
        overlays = await _optional(api, NODE_OVERLAY, parse_overlay)
        found = [*found_pools(nodes), *empty_pools(node_pools, nodes, overlays)]
        return pools_yaml(sorted(found, key=lambda pool: pool.region))
    if what == "prices":
        overlays = await _optional(api, NODE_OVERLAY, parse_overlay)
        return _json(node_prices(pools, nodes, overlays))
    if what == "availability":
        limits = await _optional(api, NODE_POOL, parse_node_pool)
        return _json(available_nodes(pools, per_node, nodes, await _pods(api), limits))
    by_name: dict[str, NodeView] = {node.name: node for node in nodes}
    workloads: list[WorkloadView] = []
    for kind in kinds:
        workloads += await _optional(api, kind, _workload_parser(kind))
    claims = await _optional(api, RESOURCE_CLAIM, parse_device_claim)
    counts = count_serving(await _all(api, POD, parse_pod), by_name, pools, workloads, claims)
    lines = [
        {"model": one.model, "role": one.role, "pool": one.pool, "gpus": one.gpus,
         "managed": one.managed, "pods": number}
        for one, number in counts.items()
    ]  # fmt: skip
    return orjson.dumps(lines, option=orjson.OPT_INDENT_2).decode() + "\n"


def _json(values: Mapping[str, float]) -> str:
    return orjson.dumps(dict(values), option=orjson.OPT_INDENT_2).decode() + "\n"


def _workload_parser(kind: Kind) -> Callable[[Manifest], WorkloadView]:
    return lambda raw: parse_workload(kind, raw)


async def _all(
    api: KubeApi, kind: Kind, parse: Callable[[Manifest], T | None], everywhere: bool = False
) -> list[T]:
    """The objects of a kind that can be read."""
    found = []
    for raw in (await api.list_objects(kind, everywhere=everywhere)).objects:
        try:
            item = parse(raw)
        except UNREADABLE as error:
            name = raw["metadata"]["name"]
            print(f"shoal: {kind.plural}/{name} cannot be read: {error}", file=sys.stderr)
        else:
            found += [item] if item is not None else []
    return found


async def _optional(api: KubeApi, kind: Kind, parse: Callable[[Manifest], T | None]) -> list[T]:
    """The objects of a kind; empty if the server lacks the kind or this account may not read it."""
    try:
        return await _all(api, kind, parse)
    except (NotFound, Forbidden):
        return []


async def _pods(api: KubeApi) -> list[PodView]:
    """The pods of all namespaces, or of this one if the account may read no others."""
    try:
        return await _all(api, POD, parse_pod, everywhere=True)
    except Forbidden:
        return await _all(api, POD, parse_pod)


def parse_pools(text: str) -> tuple[dict[str, KubePool], dict[str, int]]:
    """Pools and their GPUs per node from JSON. Raises InvalidValue, which names the offending
    field."""
    try:
        raw: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidValue("--pools", text, f"JSON ({error})") from None
    if not isinstance(raw, dict):
        raise InvalidValue("--pools", raw, "a JSON object")
    pools, per_node = {}, {}
    for pool, item in raw.items():
        settings = dict(item)
        per_node[pool] = settings.pop("per_node", 1)
        count(f"{pool}.per_node", per_node[pool], 64)
        pools[pool] = parse_kube_pool(pool, settings)
    return pools, per_node


async def serve(made: Callable[[str], Awaitable[str]], host: str, port: int) -> web.AppRunner:
    """Answer the reports of SERVED, which `made` returns by name. A failed reading gives 503, so
    that the last good values stay in force."""

    async def answer(request: web.Request) -> web.Response:
        hosts = request.headers.getall("Host", [])
        refused = HostRule(host).refusal(hosts, request.version < HttpVersion11)
        if refused is not None:
            return web.Response(status=refused[0], text=f"{refused[1]}\n")
        try:
            text = await made(request.path.strip("/"))
        except KubeError as error:
            return web.Response(status=503, text=f"{error}\n")
        return web.Response(text=text, content_type="application/json")

    app = web.Application()
    for name in SERVED:
        app.router.add_get(f"/{name}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


async def _run(arguments: argparse.Namespace) -> int:
    pools, per_node = parse_pools(arguments.pools)
    kinds = (*SCALABLE, *map(parse_kind, arguments.scale_kind))
    api = KubeClient(arguments.kubeconfig, arguments.namespace, arguments.context)
    api.open()
    try:

        async def made(what: str) -> str:
            return await report(what, api, pools, per_node, kinds)

        if not arguments.serve:
            sys.stdout.write(await made(arguments.what))
            return 0
        host, _, port = arguments.serve.rpartition(":")
        runner = await serve(made, host or "127.0.0.1", int(port))
        print(f"answering {', '.join('/' + name for name in SERVED)} at {arguments.serve}")
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
        return 0
    finally:
        await api.close()


def main(argv: list[str] | None = None) -> int:
    """Print or serve. Returns 0, or 2 for bad input or a missing right."""
    parser = argparse.ArgumentParser(prog="shoal kubernetes", description=__doc__)
    parser.add_argument("what", choices=REPORTS)
    parser.add_argument("--kubeconfig", default="")
    parser.add_argument("--context", default="")
    parser.add_argument("--scale-kind", action="append", default=[])
    parser.add_argument("--namespace", default="")
    parser.add_argument("--pools", default="{}", help="JSON: settings by pool id")
    parser.add_argument("--serve", default="", metavar="HOST:PORT")
    arguments = parser.parse_args(argv)
    try:
        return asyncio.run(_run(arguments))
    except (KubeError, InvalidValue, OSError, ValueError) as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
