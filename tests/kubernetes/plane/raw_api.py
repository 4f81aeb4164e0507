"""Plain REST requests to an API server, for tests. They do not use the tested client."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class RawApi:
    """Requests as the user of a kubeconfig with a token. Use as an async context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        raw = yaml.safe_load(kubeconfig.read_text())
        cluster, user = raw["clusters"][0]["cluster"], raw["users"][0]["user"]
        self._base = cluster["server"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._headers = {"Authorization": f"Bearer {user['token']}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RawApi:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        self._session = aiohttp.ClientSession(
            self._base, headers=self._headers, connector=connector
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self, method: str, path: str, body: Any = None, content: str = "application/json"
    ) -> tuple[int, Any]:
        """The status code and the JSON of an answer."""
        try:
            return await self._send(method, path, body, content)
        except aiohttp.ServerDisconnectedError:
            # The server closed an idle connection when this request began, or was overloaded.
            if method == "POST":
                raise
            return await self._send(method, path, body, content)

    async def _send(self, method: str, path: str, body: Any, content: str) -> tuple[int, Any]:
        assert self._session is not None
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, path, data=data, headers={"Content-Type": content},
            timeout=aiohttp.ClientTimeout(total=20),
        ) as answer:  # fmt: skip
            text = await answer.text()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, {"message": text}

    async def get(self, path: str) -> Any:
        """The JSON at `path`; None if there is no object."""
        code, found = await self.call("GET", path)
        if code == 404:
            return None
        assert code == 200, found
        return found

    async def post(self, path: str, body: Any) -> Any:
        """Create an object. An existing one stays."""
        code, found = await self.call("POST", path, body)
        assert code in (200, 201, 202, 409), (path, found)
        return found

    async def patch(self, path: str, body: Any, content: str = MERGE) -> Any:
        """Patch an object."""
        code, found = await self.call("PATCH", path, body, content)
        assert code == 200, (path, found)
        return found

    async def delete(self, path: str, grace_s: int | None = None) -> int:
        """Delete an object. Returns the status code."""
        query = "" if grace_s is None else f"?gracePeriodSeconds={grace_s}"
        return (await self.call("DELETE", path + query))[0]

    async def events(self, path: str, version: str) -> AsyncIterator[tuple[str, Any]]:
        """The events of a watch until the server ends it."""
        assert self._session is not None
        query = f"watch=true&resourceVersion={version}&timeoutSeconds=300"
        joint = "&" if "?" in path else "?"
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(f"{path}{joint}{query}", timeout=timeout) as answer:
            buffer = b""
            async for chunk in answer.content.iter_any():
                buffer += chunk
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    yield event["type"], event["object"]


def serves(pod: Any) -> bool:
    """Whether a Service sends connections to the pod: it is Ready, and not on its way out."""
    conditions = pod["status"].get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")
