"""Static files of the page, with a content security policy that allows only this origin."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    kind: str
    tag: str


class PageFiles:
    """All files of the page, in memory. So no request can read another file of the disk."""

    def __init__(self) -> None:
        root = resources.files("streams.console").joinpath("page")
        self._files: dict[str, _File] = {}
        for prefix, folder in (("", root), ("vendor/", root.joinpath("vendor"))):
            for entry in folder.iterdir():
                kind = _TYPES.get("." + entry.name.rpartition(".")[2])
                if kind is None or not entry.is_file():
                    continue
                body = entry.read_bytes()
                tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
                self._files[prefix + entry.name] = _File(body, kind, tag)

    async def index(self, request: web.Request) -> web.Response:
        """Answer GET /."""
        return self._answer(INDEX, request)

    async def file(self, request: web.Request) -> web.Response:
        """Answer GET /console/{name}."""
        return self._answer(request.match_info["name"], request)

    def _answer(self, name: str, request: web.Request) -> web.Response:
        found = self._files.get(name)
        if found is None:
            return web.Response(status=404, text="no such file\n", headers=HEADERS)
        # A browser asks again each time, so a page never mixes the files of two versions.
        headers = {**HEADERS, "ETag": found.tag, "Cache-Control": "no-cache"}
        if found.tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        return web.Response(body=found.body, headers={**headers, "Content-Type": found.kind})
