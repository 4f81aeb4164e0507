"""Definition of one server and one request, for series of engines in any Prometheus.

- A server is an address and an engine: label `exported_instance` or `instance`, and `engine`.
  Series of one server with the same metric are copies: a federation, a second scraper, a job that
  honours labels, a replica of Prometheus. Copies count once. Two series are of different servers
  if they differ in a label of `_APART`, such as pod, cluster or site. A label that only one has
  proves nothing, because scrapers attach different labels.
- An address that a scraper replaced by the pod's name, or gave without its port, is the same one.
- A series without an address is a copy of the others, such as the result of a recording rule. It
  counts only if no series has an address.
- A request passes prefill and decode, and counts once: where it is decoded. Servers of the prefill
  role are known by a label of their role, or by the word "prefill" in a name. They count only if
  there are no others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Labels = Mapping[str, str]

Ask = Callable[[str], list[dict[str, Any]]]
"""An instant query. Takes PromQL, returns the result vector, and raises the client's errors."""

MARK = "shoal_value"
"""Label that tells the parts of an answer apart."""

FINISHED, GROWTH, RESTARTS = "finished", "growth", "restarts"
RUNNING, COUNTED, ARRIVED, LATELY, HELD = "running", "counted", "arrived", "lately", "held"
"""Values of `MARK`."""

_ADDRESS = ("exported_instance", "instance", "service_instance_id", "pod", "k8s_pod_name")
_APART = re.compile(
    r"(?:exported_|k8s_|kubernetes_|kube_|cloud_|topology_kubernetes_io_)?(?:cluster|cluster_name"
    r"|region|zone|availability_zone|az|site|dc|data_?center|location|env|environment|stage|tenant"
    r"|tenant_id|namespace|namespace_name|pod|pod_name|pod_uid|host|hostname|host_name|node"
    r"|nodename|node_name|container_id|container_name)\Z"
    r"|(?:service_instance_id|ReplicaId|WorkerId|dp_rank)\Z"
)
_PODS = ("pod", "exported_pod", "pod_name", "k8s_pod_name", "kubernetes_pod_name")
_ROLE = re.compile(r"(?:.*_)?role|.*engine_type|disaggregation_mode|dynamo_component|component\Z")
_NAMES = (
    "pod", "exported_pod", "pod_name", "k8s_pod_name", "job", "exported_job", "service",
    "container", "app", "app_kubernetes_io_name", "app_kubernetes_io_component", "deployment",
    "statefulset", "workload", "instance", "exported_instance", "namespace", "dynamo_namespace",
    "endpoint", "component",
)  # fmt: skip
_PREFILL = re.compile(
    r"(?:\A|[-_./]|vllm|sglang|trtllm)prefill(?:er|s)?(?:[-_]?workers?)?(?:[-_./:0-9]|\Z)",
    re.IGNORECASE,
)
_NOT_PREFILL = re.compile(r"decode|chunked", re.IGNORECASE)


@dataclass(slots=True)
class Server:
    """One server of one model. labels: of all its copies. places: positions of the copies."""

    address: str
    engine: str
    labels: dict[str, str] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        return self.address, self.engine


def serving(series: Sequence[Labels]) -> list[Server]:
    """The servers of `servers` that answer requests. Servers of the prefill role are left out if
    there are others."""
    made = servers(series)
    prefill = {server.address for server in made if is_prefill(server.labels)}
    return [one for one in made if one.address not in prefill] or made


def servers(series: Sequence[Labels]) -> list[Server]:
    """The servers behind `series` of one metric and model, in the order of their first series."""
    found: dict[tuple[str, str], list[Server]] = {}
    by_detail = sorted(range(len(series)), key=lambda place: (-len(series[place]), place))
    for place in by_detail:
        labels = series[place]
        address, engine = address_of(labels), labels.get("engine") or "0"
        same = found.setdefault((address, engine), [])
        server = next((one for one in same if not _apart(one.labels, labels)), None)
        if server is None:
            server = Server(address, engine)
            same.append(server)
        server.labels.update({name: text for name, text in labels.items() if text})
        server.places.append(place)
    made = _same_addresses([server for same in found.values() for server in same])
    addressed = [server for server in made if server.address]
    return sorted(addressed or made, key=lambda server: min(server.places))


def address_of(labels: Labels) -> str:
    """The address of the server of a series, without scheme and path; "" if its labels have
    none."""
    text = next((labels[name] for name in _ADDRESS if labels.get(name)), "")
    return text.partition("://")[2].partition("/")[0] if "://" in text else text


def _same_addresses(made: list[Server]) -> list[Server]:
    """`made` with one server for each address that different scrapers write differently: without
    its port, or with the name of the pod as host."""
    by_host: dict[tuple[str, str], list[Server]] = {}
    for one in made:
        host, _, port = one.address.rpartition(":")
        pods = {one.labels[name] for name in _PODS if one.labels.get(name)}
        for name in {host, *pods} if port.isdigit() and host not in pods else ():
            by_host.setdefault((name, one.engine), []).append(one)
    kept = []
    for one in made:
        host, _, port = one.address.rpartition(":")
        host, port = (host, port) if port.isdigit() else (one.address, "")
        others = [
            other
            for other in by_host.get((host, one.engine), ())
            if other is not one
            and (not port or other.address.endswith(f":{port}"))
            and not _apart(other.labels, one.labels)
        ]
        if len(others) == 1 and host:
            others[0].places += one.places
            others[0].labels = one.labels | others[0].labels
        else:
            kept.append(one)
    return kept


def is_prefill(labels: Labels) -> bool:
    """Whether a server only computes prompts for other servers."""
    for name, text in labels.items():
        of_server = _ROLE.match(name) or name in _NAMES
        if of_server and _PREFILL.search(text) and not _NOT_PREFILL.search(text):
            return True
    return labels.get("kv_role") == "kv_producer"


def _apart(one: Labels, other: Labels) -> bool:
    return any(
        text and other.get(name) and other[name] != text and _APART.match(name)
        for name, text in one.items()
    )


# -- answers ------------------------------------------------------------------------------------


class Answer:
    """An instant vector with several values of the same servers, told apart by the label `MARK`.

    ValueError and LookupError: the vector has a value that is not a number.
    """

    def __init__(self, vector: Iterable[Mapping[str, Any]], most: float = 1e12) -> None:
        self._series: dict[str, list[dict[str, str]]] = {}
        self._values: dict[str, list[float]] = {}
        prefill: set[str] = set()
        addresses: set[str] = set()
        for sample in vector:
            labels = {str(name): str(text) for name, text in sample["metric"].items()}
            mark = labels.pop(MARK, "")
            value = float(sample["value"][1])
            if not math.isfinite(value) or not -most <= value <= most:
                raise ValueError(f"{value} is not a value of a server")
            self._series.setdefault(mark, []).append(labels)
            self._values.setdefault(mark, []).append(value)
            if labels:  # A count over all series has none.
                addresses.add(address_of(labels))
            if is_prefill(labels):
                prefill.add(address_of(labels))
        self._prefill = prefill if prefill < addresses else set()

    def has(self, mark: str) -> bool:
        """Whether the vector has a series of `mark`, of any server."""
        return mark in self._series

    def each(self, mark: str) -> list[tuple[Server, float]]:
        """Each server that serves requests, with the mean of its copies."""
        values = self._values.get(mark, [])
        return [
            (server, math.fsum(values[place] for place in server.places) / len(server.places))
            for server in servers(self._series.get(mark, []))
            if not self._prefill
            or not (server.address in self._prefill or is_prefill(server.labels))
        ]

    def total(self, mark: str) -> float | None:
        """Sum over the servers; None if there is no series."""
        if not self.has(mark):
            return None
        return math.fsum(value for _, value in self.each(mark))


def arrivals(vector: Sequence[Mapping[str, Any]]) -> float | None:
    """Requests/s that arrive, from the answer to `arrivals_query`; None if they are unknown.

    arrivals = completions + growth of the requests in the servers. The lost requests of a restarted
    server are no decrease of demand. ValueError and LookupError: a value is not a number.
    """
    answer = Answer(vector)
    done = answer.total(FINISHED)
    if done is None:
        # Old versions have no counter before the first answer.
        if not answer.has(RUNNING) or answer.has(COUNTED):
            return None
        done = 0.0
    if answer.has(ARRIVED):  # The counter counts requests when they arrive.
        return max(0.0, done)
    restarted = {server.key for server, count in answer.each(RESTARTS) if count > 0.0}
    grown = [value for server, value in answer.each(GROWTH) if server.key not in restarted]
    if not grown and not restarted and not answer.has(GROWTH):
        return None
    return max(0.0, done + math.fsum(grown))


def summed(vector: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answer to `arrivals_query` as a vector of one rate; empty if the rate is unknown.

    Any other vector, and a vector with an invalid value, stays as it is.
    """
    try:
        if not any(MARK in sample["metric"] for sample in vector):
            return vector
        rate = arrivals(vector)
    except (LookupError, TypeError, ValueError, AttributeError):
        return vector
    return [] if rate is None else [{"metric": {}, "value": [0, repr(rate)]}]
