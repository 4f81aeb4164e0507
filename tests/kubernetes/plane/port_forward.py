"""`kubectl port-forward svc/NAME PORT` without a kubelet's streams: pods have addresses here.

    python -m tests.kubernetes.plane.port_forward LOCAL_PORT KUBECTL_WORDS...

Chooses a ready pod of the Service, and ends with code 1 when that pod is gone, as kubectl does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path

from tests.kubernetes.plane.raw_api import RawApi, serves
from tests.tcp_service import forward


async def run(local: int, namespace: str, service: str, port: int) -> int:
    """Forward connections of the local port until the pod is gone."""
    async with RawApi(Path(os.environ["KUBECONFIG"])) as api:
        path = f"/api/v1/namespaces/{namespace}"
        selector = (await api.get(f"{path}/services/{service}"))["spec"]["selector"]
        query = "%2C".join(f"{key}%3D{value}" for key, value in selector.items())
        pods = (await api.get(f"{path}/pods?labelSelector={query}"))["items"]
        pod = next(pod for pod in pods if serves(pod))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await forward(reader, writer, pod["status"]["podIP"], port)

        async with await asyncio.start_server(serve, "127.0.0.1", local):
            print(f"Forwarding from 127.0.0.1:{local} -> {port}", flush=True)
            while await api.get(f"{path}/pods/{pod['metadata']['name']}"):
                await asyncio.sleep(0.2)
    print("error: lost connection to pod", file=sys.stderr)
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("local", type=int)
    parser.add_argument("-n", dest="namespace")
    parser.add_argument("verb", choices=["port-forward"])
    parser.add_argument("service")
    parser.add_argument("port", type=int)
    found = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        name = found.service.removeprefix("svc/")
        sys.exit(asyncio.run(run(found.local, found.namespace, name, found.port)))
