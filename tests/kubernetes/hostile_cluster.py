"""Programs of other owners that act on the pods of Shoal: a webhook that fails half of the time,
and a queue that removes scheduling gates. Also their objects, which Shoal may not touch."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi

PODS = "/api/v1/namespaces/serving/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/serving/deployments"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
GATE = {"name": "example.com/queue"}
OF_SHOAL = {"shoal.dev/managed": "true"}


@contextlib.asynccontextmanager
async def failing_webhook(
    plane: ControlPlane, admin: RawApi, labels: dict[str, str] = OF_SHOAL
) -> AsyncIterator[Counter[str]]:
    """A webhook for every write of a pod with `labels`. Yields its answers: "failed" and
    "allowed"."""
    answers: Counter[str] = Counter()
    dice = random.Random(11)

    async def review(request: web.Request) -> web.Response:
        asked = (await request.json())["request"]
        answer = "failed" if dice.random() < 0.5 else "allowed"
        answers[answer] += 1
        if answer == "failed":
            return web.Response(status=500)
        found = {"uid": asked["uid"], "allowed": True}
        kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**kind, "response": found})

    app = web.Application()
    app.router.add_post("/", review)
    runner = web.AppRunner(app)
    await runner.setup()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(plane.folder / "server.crt", plane.folder / "server.key")
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    bundle = base64.b64encode((plane.folder / "ca.crt").read_bytes()).decode()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
            "operations": ["CREATE", "UPDATE", "DELETE"], "scope": "*"}  # fmt: skip
    hook = {"name": "half.example.com", "failurePolicy": "Fail", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "rules": [rule], "timeoutSeconds": 5,
            "objectSelector": {"matchLabels": labels},
            "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle}}  # fmt: skip
    await admin.post(HOOKS, {"metadata": {"name": "half"}, "webhooks": [hook]})
    try:
        yield answers
    finally:
        await admin.delete(f"{HOOKS}/half")
        await runner.cleanup()


@contextlib.asynccontextmanager
async def open_gates(admin: RawApi, labels: dict[str, str] = OF_SHOAL) -> AsyncIterator[None]:
    """Remove the scheduling gates of pods with `labels`, as a queue that admits them."""
    chosen = "%2C".join(f"{key}%3D{value}" for key, value in labels.items())
    query = f"{PODS}?labelSelector={chosen}"

    async def admit() -> None:
        while True:
            for pod in (await admin.get(query))["items"]:
                if pod["spec"].get("schedulingGates"):
                    change = {"spec": {"schedulingGates": None}}
                    merge = "application/merge-patch+json"
                    await admin.call("PATCH", f"{PODS}/{pod['metadata']['name']}", change, merge)
            await asyncio.sleep(0.2)

    admitting = asyncio.create_task(admit())
    try:
        yield
    finally:
        admitting.cancel()
        await asyncio.gather(admitting, return_exceptions=True)


async def add_foreign(admin: RawApi) -> None:
    """A running pod and a Deployment that serve the same model, and a gated pod."""
    labels = {"shoal.dev/model": "m", "app": "theirs"}
    container = {"name": "e", "image": "e"}
    for name, more in (("theirs", {}), ("gated", {"schedulingGates": [GATE]})):
        meta = {"name": name, "labels": labels}
        await admin.post(PODS, {"metadata": meta, "spec": {"containers": [container], **more}})
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    await admin.post(DEPLOYMENTS, {"metadata": {"name": "theirs"}, "spec": spec})
    async with asyncio.timeout(60):
        while len([one for one in (await foreign(admin)).values() if one[1].get("nodeName")]) < 4:
            await asyncio.sleep(0.1)


async def foreign(admin: RawApi) -> dict[str, tuple[Any, Any]]:
    """Metadata and spec of the objects of `add_foreign` as their owners wrote them, by uid."""
    found = (await admin.get(f"{PODS}?labelSelector=app%3Dtheirs"))["items"]
    deployment = await admin.get(f"{DEPLOYMENTS}/theirs")
    kept = ("name", "labels", "annotations", "ownerReferences", "deletionTimestamp")
    return {
        one["metadata"]["uid"]: ({k: one["metadata"].get(k) for k in kept}, one["spec"])
        for one in [*found, deployment]
    }
