"""The only module that talks to a Kubernetes API server.

`KubeApi` is the interface of the rest of the package; tests implement it in memory. `KubeClient`
implements it with lightkube and turns every failure into a `KubeError`. Facts about lightkube
1.0.1: its HTTP errors come from httpx2; a throttled request is a bare HTTPStatusError with
Retry-After; a patch of a custom resource must be a merge patch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from executors.kubernetes.kube_errors import KubeError, Unauthorized, kube_error
from executors.kubernetes.kube_kinds import Kind
from executors.kubernetes.kubeconfig import client_config

Manifest = dict[str, Any]
"""A Kubernetes object as JSON. The modules pod_view, node_view, ... parse it."""

MANAGER = "shoal"
"""Name of this program in `managedFields`."""

_TIMEOUT_S = 10.0
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind at one resource version."""

    objects: tuple[Manifest, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch. deleted: `object` was removed from the selection."""

    object: Manifest
    deleted: bool


@dataclass(frozen=True, slots=True)
class Scale:
    """The `/scale` subresource of a workload. version: resource version of the subresource."""

    replicas: int
    version: str
    selector: str = ""


class KubeApi(Protocol):
    """Requests to one namespace of an API server. Every method raises `KubeError`."""

    @property
    def namespace(self) -> str:
        """The namespace of all namespaced objects."""
        ...

    async def list_objects(self, kind: Kind, labels: str = "", everywhere: bool = False) -> Listing:
        """All objects that match the label selector. everywhere: in all namespaces."""
        ...

    def watch(
        self, kind: Kind, version: str, labels: str, limit_s: int, everywhere: bool = False
    ) -> AsyncIterator[Change]:
        """Changes after `version`, without end. Each connection is renewed after `limit_s`."""
        ...

    async def read(self, kind: Kind, name: str) -> Manifest:
        """One object."""
        ...

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Create an object; returns it as stored."""
        ...

    async def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest:
        """Apply a JSON merge patch; returns the object as stored."""
        ...

    async def patch_status(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest:
        """Apply a JSON merge patch to the status subresource of a custom resource; returns the
        object as stored."""
        ...

    async def delete(self, kind: Kind, name: str, grace_s: int) -> None:
        """Delete an object. A pod gets SIGTERM, and SIGKILL after `grace_s`."""
        ...

    async def read_scale(self, kind: Kind, name: str) -> Scale:
        """The replicas of a workload."""
        ...

    async def write_scale(self, kind: Kind, name: str, replicas: int, version: str) -> Scale:
        """Set the replicas. Raises Conflict if the workload is not at `version`."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class KubeClient:
    """`KubeApi` over HTTP. Call `open` before the first request.

    kubeconfig, context: see `client_config`. namespace: "" = that of the configuration.
    """

    def __init__(self, kubeconfig: str = "", namespace: str = "", context: str = "") -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._namespace = namespace
        self._client: Any = None

    @property
    def namespace(self) -> str:
        """The namespace of all namespaced objects."""
        return self._namespace

    def open(self) -> None:
        """Read the configuration. Raises KubeError (code 0) if there is no usable one."""
        # Import here, because lightkube takes 30 MB that other processes do not need.
        from lightkube import AsyncClient
        from lightkube.core.exceptions import ConfigError

        try:
            self._client = AsyncClient(
                client_config(self._kubeconfig, self._context),
                namespace=self._namespace or None,
                field_manager=MANAGER,
                trust_env=False,
            )
        except (ConfigError, OSError, KeyError, ValueError) as error:
            raise kube_error(0, "NoConfiguration", f"Kubernetes configuration: {error}") from None
        self._namespace = self._client.namespace

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()

    async def list_objects(self, kind: Kind, labels: str = "", everywhere: bool = False) -> Listing:
        """See `KubeApi`."""

        async def listing() -> Listing:
            pages = self._client.list(
                _class(kind), chunk_size=_CHUNK, labels=_selector(labels), **_where(everywhere)
            )
            objects = tuple([dict(found) async for found in pages])
            return Listing(objects, pages.resourceVersion)

        found: Listing = await self._request(listing)
        return found

    async def watch(
        self, kind: Kind, version: str, labels: str, limit_s: int, everywhere: bool = False
    ) -> AsyncIterator[Change]:
        """See `KubeApi`."""
        import httpx2

        changes = self._client.watch(
            _class(kind),
            resource_version=version,
            server_timeout=limit_s,
            labels=_selector(labels),
            **_where(everywhere),
        )
        try:
            async for name, found in changes:
                yield Change(dict(found), name == "DELETED")
        except (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError) as error:
            raise _translate(error) from None
        finally:
            await changes.aclose()

    async def read(self, kind: Kind, name: str) -> Manifest:
        """See `KubeApi`."""
        return dict(await self._request(lambda: self._client.get(_class(kind), name)))

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See `KubeApi`."""
        body = _class(kind)({"apiVersion": kind.api_version, "kind": kind.kind, **manifest})
        return dict(await self._request(lambda: self._client.create(body)))

    async def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest:
        """See `KubeApi`."""
        return dict(await self._request(lambda: self._merge(_class(kind), name, change)))

    async def patch_status(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest:
        """See `KubeApi`."""
        return dict(await self._request(lambda: self._merge(_class(kind).Status, name, change)))

    async def delete(self, kind: Kind, name: str, grace_s: int) -> None:
        """See `KubeApi`."""
        await self._request(lambda: self._client.delete(_class(kind), name, grace_period=grace_s))

    async def read_scale(self, kind: Kind, name: str) -> Scale:
        """See `KubeApi`."""
        return _scale(await self._request(lambda: self._client.get(_class(kind).Scale, name)))

    async def write_scale(self, kind: Kind, name: str, replicas: int, version: str) -> Scale:
        """See `KubeApi`."""
        change = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        found = await self._request(lambda: self._merge(_class(kind).Scale, name, change))
        return _scale(found)

    # -- inside -------------------------------------------------------------------------------

    def _merge(self, resource: Any, name: str, change: Mapping[str, Any]) -> Any:
        from lightkube.types import PatchType

        return self._client.patch(resource, name, dict(change), patch_type=PatchType.MERGE)

    async def _request(self, send: Any) -> Any:
        """The result of `send()`. After a 401 the configuration is read again once, because a token
        in a kubeconfig may have been renewed."""
        try:
            return await self._attempt(send)
        except Unauthorized:
            old = self._client
            self.open()
            await old.close()
            return await self._attempt(send)

    async def _attempt(self, send: Any) -> Any:
        import httpx2

        try:
            return await send()
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise _translate(error) from None


@lru_cache(maxsize=64)
def _class(kind: Kind) -> Any:
    """lightkube's class for `kind`, whose objects are dictionaries."""
    from lightkube.generic_resource import create_global_resource, create_namespaced_resource

    make = create_namespaced_resource if kind.namespaced else create_global_resource
    return make(kind.group, kind.version, kind.kind, kind.plural)


def _selector(labels: str) -> Any:
    """lightkube's form of a label selector "a=b,c" ("c": the label exists)."""
    if not labels:
        return None
    pairs = (part.partition("=") for part in labels.split(","))
    return {key: value if equals else None for key, equals, value in pairs}


def _where(everywhere: bool) -> dict[str, str]:
    return {"namespace": "*"} if everywhere else {}


def _scale(found: Any) -> Scale:
    raw = found.to_dict()
    selector = (raw.get("status") or {}).get("selector") or ""
    replicas = (raw.get("spec") or {}).get("replicas") or 0
    return Scale(int(replicas), str(raw["metadata"]["resourceVersion"]), str(selector))


def _translate(error: Exception) -> KubeError:
    """The `KubeError` for an exception of lightkube or httpx2."""
    status = getattr(error, "status", None)
    response = getattr(error, "response", None)
    if status is not None:
        code, reason = int(status.code or 0), str(status.reason or "")
        return kube_error(code, reason, str(status.message or ""), _retry_after_s(response))
    if response is not None:
        message = f"HTTP {response.status_code}"
        return kube_error(response.status_code, "", message, _retry_after_s(response))
    return kube_error(0, "Unreachable", f"{type(error).__name__}: {error}")


def _retry_after_s(response: Any) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", 0)))
    except (AttributeError, ValueError):
        return 0.0
