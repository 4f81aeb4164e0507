"""A kubelet for tests: pods are local processes, each with an address of its own in 127/8.

    python -m tests.kubernetes.plane.loop_kubelet KUBECONFIG --node l4-0 --node l4-1 --gpus 4 \
        --label pool=l4 --logs FOLDER

API server, scheduler and controllers are real. The kubelet registers its nodes, and for each pod
that is bound to one it starts the first container's command (a pod without a command is only
reported as ready), probes its readiness, publishes address and conditions, sends SIGTERM, waits for
the grace period, sends SIGKILL and confirms the deletion. Without isolation; images and volumes
only for those of `--image`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from tests.kubernetes.plane.pod_container import Images
from tests.kubernetes.plane.raw_api import STRATEGIC, RawApi

_PODS = "/api/v1/pods"
_LOST = (aiohttp.ClientError, TimeoutError, OSError)


def _stamp() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class NoProcess:
    """Replaces the process of a pod without a command."""

    pid = 0

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._over = asyncio.Event()

    async def wait(self) -> None:
        await self._over.wait()

    def stop(self) -> None:
        self.returncode = 0
        self._over.set()


class Kubelet:
    """The pods of some nodes."""

    def __init__(
        self, api: RawApi, nodes: list[str], logs: Path, third: int, images: Images
    ) -> None:
        self.api, self.nodes, self.logs, self.images = api, nodes, logs, images
        self._addresses = (f"127.{third}.{n // 250}.{n % 250 + 1}" for n in itertools.count(1))
        self._latest: dict[str, Any] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._processes: set[Any] = set()
        self._devices: dict[str, str] = {}
        self._publishing = asyncio.Lock()

    async def register(self, gpus: int, labels: dict[str, str]) -> None:
        devices = {"cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": str(gpus)}
        self._devices = devices
        for node in self.nodes:
            meta = {"name": node, "labels": {"kubernetes.io/hostname": node, **labels}}
            await self.api.post("/api/v1/nodes", {"metadata": meta})
        await self._report_nodes()
        # The node controller takes the taint "not ready" away some time after the report.
        while any("node.kubernetes.io/not-ready" in taints for taints in await self._taints()):
            await asyncio.sleep(0.1)

    async def _taints(self) -> list[set[str]]:
        """The keys of the taints of each node."""
        nodes = (await self.api.get("/api/v1/nodes"))["items"]
        own = [node["spec"] for node in nodes if node["metadata"]["name"] in self.nodes]
        return [{taint["key"] for taint in spec.get("taints") or ()} for spec in own]

    async def _report_nodes(self) -> None:
        """Say that the nodes are ready, also after the server was away for long."""
        devices = self._devices
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                 "lastHeartbeatTime": _stamp(), "lastTransitionTime": _stamp()}  # fmt: skip
        status = {"capacity": devices, "allocatable": devices, "conditions": [ready],
                  "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}  # fmt: skip
        for node in self.nodes:
            await self.api.patch(f"/api/v1/nodes/{node}/status", {"status": status}, STRATEGIC)

    async def renew_leases(self) -> None:
        base = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        while True:
            for node in self.nodes:
                now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now}
                with contextlib.suppress(*_LOST):
                    code, _ = await self.api.call(
                        "PATCH", f"{base}/{node}", {"spec": spec}, "application/merge-patch+json"
                    )
                    if code == 404:
                        meta = {"name": node, "namespace": "kube-node-lease"}
                        await self.api.call("POST", base, {"metadata": meta, "spec": spec})
            with contextlib.suppress(*_LOST, AssertionError):
                await self._report_nodes()
            await asyncio.sleep(10)

    async def follow(self) -> None:
        while True:
            try:
                code, listing = await self.api.call("GET", _PODS)
                if code != 200:
                    raise OSError(code)
                here = {pod["metadata"]["uid"] for pod in listing["items"]}
                for pod in listing["items"]:
                    self._observe(pod)
                for uid in [uid for uid in self._latest if uid not in here]:
                    self._removed(uid)
                version = listing["metadata"]["resourceVersion"]
                async for kind, pod in self.api.events(_PODS, version):
                    if kind == "DELETED":
                        self._removed(pod["metadata"]["uid"])
                    elif kind != "ERROR":
                        self._observe(pod)
                    else:
                        break
            except _LOST as error:
                print("watch", type(error).__name__, flush=True)
                await asyncio.sleep(0.5)

    async def end(self) -> None:
        """End without leaving a process or a node behind, unlike a real kubelet."""
        for process in self._processes:
            _signal(process, signal.SIGKILL)
        with contextlib.suppress(*_LOST):
            for node in self.nodes:
                await self.api.delete(f"/api/v1/nodes/{node}")
        os._exit(0)

    def _removed(self, uid: str) -> None:
        self._latest.pop(uid, None)
        if uid in self._changed:
            self._changed[uid].set()

    def _observe(self, pod: Any) -> None:
        if pod["spec"].get("nodeName") not in self.nodes:
            return
        uid = pod["metadata"]["uid"]
        self._latest[uid] = pod
        if uid not in self._tasks:
            self._changed[uid] = asyncio.Event()
            task = self._tasks[uid] = asyncio.create_task(self._pod(uid))
            task.add_done_callback(lambda done: self._ended(uid, done))
        self._changed[uid].set()

    def _ended(self, uid: str, done: asyncio.Task[None]) -> None:
        self._tasks.pop(uid, None)
        self._changed.pop(uid, None)
        if not done.cancelled() and done.exception() is not None:
            print("pod task", repr(done.exception()), flush=True)
            if uid in self._latest:
                asyncio.get_running_loop().call_later(0.5, self._observe, self._latest[uid])

    async def _pod(self, uid: str) -> None:
        pod = self._latest[uid]
        if _terminating(pod):
            await self._confirm(pod)
            return
        address, started = next(self._addresses), _stamp()
        container = pod["spec"]["containers"][0]
        process: Any = await self._start(pod, container, address)
        self._processes.add(process)
        probe = (container.get("readinessProbe") or {}).get("httpGet")
        ready, first = False, True
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)) as http:
            while True:
                current = self._latest.get(uid)
                if current is None or _terminating(current) or process.returncode is not None:
                    break
                now_ready = probe is None or await _answers(http, address, probe)
                if first or now_ready != ready:
                    first, ready = False, now_ready
                    await self._report(current, address, ready, "Running", started)
                self._changed[uid].clear()
                wait_s = 5.0 if probe is None or ready else 0.1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed[uid].wait(), wait_s)
        await self._publish()  # Services leave the pod before its process gets SIGTERM.
        await self._stop(process, self._latest.get(uid))
        self._processes.discard(process)
        current = self._latest.get(uid)
        if current is None:
            return
        if not _terminating(current):
            phase = "Succeeded" if process.returncode == 0 else "Failed"
            await self._report(current, address, False, phase, started, process.returncode)
            while uid in self._latest and not _terminating(self._latest[uid]):
                self._changed[uid].clear()
                await self._changed[uid].wait()
        await self._confirm(self._latest.get(uid) or current)

    async def _start(self, pod: Any, container: Any, address: str) -> Any:
        argv = [*(container.get("command") or []), *(container.get("args") or [])]
        notes = pod["metadata"].get("annotations") or {}
        if self.images.have(container):
            words, env = await self.images.process(self.api, pod, container, address)
            return await self._spawn(pod, words, env)
        if not argv or notes.get("test/process") == "none":
            await asyncio.sleep(float(notes.get("test/ready-after", 0)))
            return NoProcess()
        env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "POD_IP": address}  # noqa: S108
        for item in container.get("env") or ():
            if "value" in item:
                env[item["name"]] = item["value"].replace("$(POD_IP)", address)
        return await self._spawn(pod, [word.replace("$(POD_IP)", address) for word in argv], env)

    async def _spawn(self, pod: Any, words: list[str], env: dict[str, str]) -> Any:
        with (self.logs / f"{pod['metadata']['name']}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *words, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    async def _stop(self, process: Any, pod: Any) -> None:
        if process.returncode is not None:
            return
        grace_s = float(
            (pod or {"metadata": {}})["metadata"].get("deletionGracePeriodSeconds") or 0
        )
        end_s = time.monotonic() + grace_s
        if grace_s:
            await asyncio.sleep(_pre_stop_s(pod))
            _signal(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), max(0.01, end_s - time.monotonic()))
        except TimeoutError:
            _signal(process, signal.SIGKILL)
            await process.wait()

    async def _report(
        self, pod: Any, address: str, ready: bool, phase: str, started: str, code: int | None = None
    ) -> None:
        state: Any = {"running": {"startedAt": started}}
        if code is not None:
            reason = "Error" if code else "Completed"
            state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": _stamp()}}
        container = pod["spec"]["containers"][0]
        conditions = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": str(ready), "lastTransitionTime": _stamp()},
        ]
        found = {"name": container["name"], "image": container.get("image", ""), "imageID": "",
                 "ready": ready, "started": True, "restartCount": 0, "state": state}  # fmt: skip
        status = {"phase": phase, "podIP": address, "podIPs": [{"ip": address}],
                  "hostIP": "127.0.0.1", "startTime": started, "conditions": conditions,
                  "containerStatuses": [found]}  # fmt: skip
        await self._until_taken("PATCH", f"{_path(pod)}/status", {"status": status})
        await self._publish()

    async def _publish(self) -> None:
        if self.images.entrypoints:
            with contextlib.suppress(*_LOST, AssertionError):
                async with self._publishing:  # The latest state is written last.
                    await self.images.publish(self.api)

    async def _confirm(self, pod: Any) -> None:
        await self._until_taken("DELETE", f"{_path(pod)}?gracePeriodSeconds=0", None)
        await self._publish()

    async def _until_taken(self, method: str, path: str, body: Any) -> None:
        """Repeat a write while the API server is away."""
        while True:
            try:
                code, _ = await self.api.call(method, path, body, STRATEGIC)
                if code < 500 and code != 429:
                    return
            except _LOST:
                pass
            await asyncio.sleep(0.2)


def _path(pod: Any) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


def _pre_stop_s(pod: Any) -> float:
    """Seconds of the first container's `preStop` sleep."""
    hook = (pod["spec"]["containers"][0].get("lifecycle") or {}).get("preStop") or {}
    return float((hook.get("sleep") or {}).get("seconds", 0))


def _terminating(pod: Any) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _signal(process: Any, number: int) -> None:
    if isinstance(process, NoProcess):
        process.stop()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


async def _answers(http: aiohttp.ClientSession, address: str, probe: Any) -> bool:
    try:
        async with http.get(f"http://{address}:{probe['port']}{probe['path']}") as answer:
            return answer.status < 400
    except _LOST:
        return False


async def _main(arguments: argparse.Namespace) -> None:
    arguments.logs.mkdir(parents=True, exist_ok=True)
    async with RawApi(arguments.kubeconfig) as api:
        images = Images(
            {name: words.split() for name, words in (i.split("=", 1) for i in arguments.image)},
            arguments.programs, arguments.logs / "images", arguments.kubeconfig,
        )  # fmt: skip
        images.prepare()
        kubelet = Kubelet(api, arguments.node, arguments.logs, arguments.third, images)
        loop = asyncio.get_running_loop()
        ending: list[asyncio.Task[None]] = []
        loop.add_signal_handler(
            signal.SIGTERM, lambda: ending.append(loop.create_task(kubelet.end()))
        )
        await kubelet.register(arguments.gpus, dict(text.split("=", 1) for text in arguments.label))
        print("ready", flush=True)
        await asyncio.gather(kubelet.renew_leases(), kubelet.follow())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--node", action="append", default=[])
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--third", type=int, default=10, help="second byte of pod addresses")
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument(
        "--image", action="append", default=[], metavar="REPOSITORY=WORDS",
        help="run pods of this image as a program of this machine",
    )  # fmt: skip
    parser.add_argument("--programs", type=Path, help="a folder with the programs of the images")
    sys.exit(asyncio.run(_main(parser.parse_args())))
