"""The first container of a pod as a process, for images whose programs this machine has.

Files of ConfigMaps, Secrets and empty volumes lie in a folder of the pod; paths in arguments and
variables lead there. The token of the service account comes in a kubeconfig. Names of Services lead
to the addresses in a folder of the kubelet.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.plane.raw_api import RawApi, serves

_RESOLVER = '''"""Resolves names of Services: each is a file with addresses of its ready pods."""
import asyncio, os, random, uvloop
_NAMES = os.path.join(os.path.dirname(__file__), "names")

def _resolving(create):
    async def connect(loop, factory, host=None, port=None, **more):
        file = os.path.join(_NAMES, str(host))
        if os.path.isfile(file):
            found = open(file).read().split()
            if not found:
                raise ConnectionRefusedError(f"{host} has no ready pod")
            if more.get("ssl"):
                more.setdefault("server_hostname", host)
            host = random.choice(found)
        return await create(loop, factory, host, port, **more)
    return connect

for _loop in (asyncio.BaseEventLoop, uvloop.Loop):
    _loop.create_connection = _resolving(_loop.create_connection)
'''


@dataclass(frozen=True, slots=True)
class Images:
    """Images of this machine. entrypoints: by repository. programs: a folder for PATH. folder: for
    files of pods and names of Services. kubeconfig: of the kubelet."""

    entrypoints: dict[str, list[str]]
    programs: Path
    folder: Path
    kubeconfig: Path

    def prepare(self) -> None:
        """Make the folder of Services."""
        (self.folder / "names").mkdir(parents=True, exist_ok=True)
        (self.folder / "sitecustomize.py").write_text(_RESOLVER)

    def have(self, container: Any) -> bool:
        """Whether the container's image is one of these."""
        return _repository(container) in self.entrypoints

    async def process(
        self, api: RawApi, pod: Any, container: Any, address: str
    ) -> tuple[list[str], dict[str, str]]:
        """The words and the environment of the container's process."""
        folder = self.folder / pod["metadata"]["uid"]
        volumes = {one["name"]: one for one in pod["spec"].get("volumes") or ()}
        places = {}
        for mount in container.get("volumeMounts") or ():
            at = folder / mount["name"]
            await _fill(api, pod, volumes[mount["name"]], at)
            places[mount["mountPath"]] = str(at)
        variables = _variables(pod, container, address)
        words = container.get("command") or self.entrypoints[_repository(container)]
        words = [*words, *(container.get("args") or ())]

        def local(text: str) -> str:
            text = re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)
            if places:
                paths = "|".join(sorted(map(re.escape, places), key=len, reverse=True))
                text = re.sub(
                    rf"(?<![\w/.-])({paths})(?![\w.-])", lambda found: places[found[1]], text
                )
            return text.replace("0.0.0.0", address)

        env = {name: local(value) for name, value in variables.items()}
        account = pod["spec"].get("serviceAccountName", "")
        if account and pod["spec"].get("automountServiceAccountToken", True):
            env["KUBECONFIG"] = str(await self._account(api, pod, account, folder))
        env["PATH"] = f"{self.programs}:{os.environ['PATH']}"
        env["PYTHONPATH"] = f"{self.folder}:{os.environ['PYTHONPATH']}"
        env.pop("NUMBA_CACHE_DIR", None)  # An image contains compiled code.
        kept = {key: os.environ[key] for key in ("NUMBA_CACHE_DIR",) if key in os.environ}
        return [local(word) for word in words], {"POD_IP": address, **env, **kept}

    async def _account(self, api: RawApi, pod: Any, account: str, folder: Path) -> Path:
        accounts = f"/api/v1/namespaces/{pod['metadata']['namespace']}/serviceaccounts"
        path = f"{accounts}/{account}/token"
        made = await api.post(path, {"spec": {}})
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": made["status"]["token"]}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        return folder / "kubeconfig"

    async def publish(self, api: RawApi) -> None:
        """Write the addresses of all Services."""
        pods = (await api.get("/api/v1/pods"))["items"]
        for service in (await api.get("/api/v1/services"))["items"]:
            selector = service["spec"].get("selector")
            if selector:
                space = service["metadata"]["namespace"]
                found = [
                    pod["status"]["podIP"]
                    for pod in pods
                    if pod["metadata"]["namespace"] == space
                    and selector.items() <= (pod["metadata"].get("labels") or {}).items()
                    and serves(pod)
                ]
                file = self.folder / "names" / service["metadata"]["name"]
                new = self.folder / f"{file.name}.new"
                new.write_text("\n".join(found))
                new.replace(file)  # A reader never sees a part.


def _repository(container: Any) -> str:
    return str(container.get("image", "")).split("@")[0].rpartition(":")[0]


def _variables(pod: Any, container: Any, address: str) -> dict[str, str]:
    fields = {"metadata.name": pod["metadata"]["name"], "status.podIP": address}
    found: dict[str, str] = {}
    for item in container.get("env") or ():
        source = item.get("valueFrom")
        found[item["name"]] = (
            fields[source["fieldRef"]["fieldPath"]] if source else item.get("value", "")
        )
    return found


async def _fill(api: RawApi, pod: Any, volume: Any, at: Path) -> None:
    """Write the files of a volume."""
    at.mkdir(parents=True, exist_ok=True)
    space = pod["metadata"]["namespace"]
    sources = volume["projected"]["sources"] if "projected" in volume else [volume]
    for source in sources or ():
        for kind in ("configMap", "secret"):
            if kind in source:
                name = source[kind]["name"]
                found = await api.get(f"/api/v1/namespaces/{space}/{kind.lower()}s/{name}")
                data = {key: text.encode() for key, text in (found.get("data") or {}).items()}
                if kind == "secret":
                    data = {key: base64.b64decode(text) for key, text in data.items()}
                paths = {one["key"]: one["path"] for one in source[kind].get("items") or ()}
                for key, text in data.items():
                    if not paths or key in paths:
                        file = at / paths.get(key, key)
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_bytes(text)
