"""Kubernetes Events, so that `kubectl describe` and `kubectl get events` show what Shoal does."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_client import KubeApi, Manifest
from executors.kubernetes.kube_errors import KubeError
from executors.kubernetes.kube_kinds import EVENT, POD, Kind
from executors.kubernetes.pod_template import PodLaunch, read_launch
from executors.kubernetes.pod_view import PodView

log = logging.getLogger(__name__)

_LONGEST = 1000


async def write_event(
    api: KubeApi, about: tuple[Kind, str, str], reason: str, text: str, kind: str = "Warning"
) -> None:
    """Write an Event. about: kind, name and uid ("" = unknown) of its object. kind: "Normal" or
    "Warning". If the server refuses the Event, only the log tells of it."""
    what, name, uid = about
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event: Manifest = {
        "metadata": {"name": f"{name}.{uuid.uuid4().hex[:12]}"},
        "involvedObject": {
            "apiVersion": what.api_version,
            "kind": what.kind,
            "name": name,
            "namespace": api.namespace,
            **({"uid": uid} if uid else {}),
        },
        "reason": reason,
        "message": text[:_LONGEST],
        "type": kind,
        "source": {"component": "shoal"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await api.create(EVENT, event)
    except KubeError as error:
        log.warning("%s %s: no event: %s", what.kind, name, error)


async def write_start_event(api: KubeApi, pod: PodView, launch: PodLaunch, slot: str) -> None:
    """Write the Event for a pod that begins a launch on `slot`."""
    desired = launch.desired
    gpus = "1 GPU" if len(desired.gpus) == 1 else f"{len(desired.gpus)} GPUs"
    attempt = f", attempt {launch.attempt + 1}" if launch.attempt else ""
    text = (f"starts {desired.model} on {slot} with {gpus}; engine "
            f"{desired.engine}, version {desired.version or 'unknown'}{attempt}")  # fmt: skip
    await write_event(api, (POD, pod.name, pod.uid), "Starting", text, "Normal")


async def write_serving_event(
    api: KubeApi, pod: PodView, serving: str, pods: Iterable[PodView]
) -> None:
    """Write the Event for a pod whose label `names.SERVING` became `serving`. pods: all pods of
    the fleet; the text counts those of the same model by version."""
    launch = read_launch(pod.annotations)
    if launch is None or serving not in ("true", "draining"):
        return
    model, version = launch.desired.model, launch.desired.version
    serves = [one for one in pods if one.labels.get(names.SERVING) == "true"]
    launched = [_launched(one.annotations.get(names.LAUNCH, "")) for one in serves
                if one.name != pod.name]  # fmt: skip
    counts = Counter(one for name, one in launched if name == model)
    if serving == "true":
        counts[version] += 1
        reason, what = "Serving", f"serves {model}"
    else:
        reason, what = "Draining", f"left the routes of {model} and finishes its requests"
    order = sorted(counts.items(), key=lambda pair: (pair[0] != version, pair))
    shown = ", ".join(f"{count} of version {one or 'unknown'}" for one, count in order)
    own = f"engine {launch.desired.engine}, version {version or 'unknown'}"
    text = f"{what}; {own}; pods that serve {model}: {shown or 'none'}"
    about = (POD, pod.name, pod.uid)
    await write_event(api, about, reason, text, "Normal")


@lru_cache(maxsize=4096)
def _launched(launch: str) -> tuple[str, str]:
    """Model and version in the annotation `launch`; ("", "") if it cannot be read."""
    found = read_launch({names.LAUNCH: launch})
    return (found.desired.model, found.desired.version) if found is not None else ("", "")
