"""One exchange with one engine, and what its failures mean.

Owns the connection pool and the classes of failure. Knows nothing of routes or of clients.
"""

from __future__ import annotations

import errno
from types import TracebackType

import aiohttp
from yarl import URL

from executors.gateway.settings import Clock, Settings
from topics.records import Endpoint

_JSON = "application/json"
# Shorter than the 5 s after which vLLM closes an idle connection, so that we never write into one.
_KEEP_ALIVE_REAL_S = 3.0


class EngineError(Exception):
    """This instance did not answer the request; another one may."""


class EngineGone(EngineError):
    """It does not answer anyone: nothing more goes to it until a probe succeeds."""


class EngineStalled(EngineError):
    """It did not finish this request in time; whether it hangs is judged by all its requests."""


class EngineFaulty(EngineError):
    """It answered with its own error: gone if it does so again and again."""


class EngineRefused(Exception):
    """It refused the request for what the request is (4xx): no other instance would take it."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


class Engines:
    """HTTP to all engines, over one pool of connections without a limit."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._timeout = aiohttp.ClientTimeout(
            total=max(1.0, clock.real_s(settings.request_s)),
            sock_connect=settings.connect_real_s,
        )
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[tuple[str, str], URL] = {}

    async def __aenter__(self) -> Engines:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_REAL_S)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, request_id: str
    ) -> aiohttp.ClientResponse:
        """The answer of `endpoint`, its status 200; EngineError or EngineRefused otherwise.

        The caller releases or closes the response.
        """
        assert self._session is not None  # noqa: S101 - used inside `async with` only
        try:
            answer = await self._session.post(
                self._url(endpoint.address, path),
                data=body,
                headers={"Content-Type": _JSON, "X-Request-Id": request_id},
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise failure_of(error) from error
        if answer.status == 200:
            return answer
        try:
            text = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise failure_of(error) from error
        finally:
            answer.release()
        shown = text[:200].decode(errors="replace")
        if answer.status in (404, 503):  # 404: another model's engine sits at this address now
            raise EngineGone(f"status {answer.status}: {shown}")
        if answer.status >= 500 or answer.status < 400:
            raise EngineFaulty(f"status {answer.status}: {shown}")
        raise EngineRefused(answer.status, text)

    async def alive(self, endpoint: Endpoint, model: str, generate: bool) -> bool:
        """Whether `endpoint` may be used again: healthy and, if asked, able to make one token.

        An engine that hangs still says that it is healthy, so health alone proves nothing there.
        """
        assert self._session is not None  # noqa: S101
        limit = aiohttp.ClientTimeout(total=5.0, sock_connect=1.0)
        try:
            async with self._session.get(
                self._url(endpoint.address, "/health"), timeout=limit
            ) as a:
                if a.status != 200:
                    return False
            if not generate:
                return True
            body = {"model": model, "prompt": "a", "max_tokens": 1}
            url = self._url(endpoint.address, "/v1/completions")
            async with self._session.post(url, json=body, timeout=limit) as a:
                return a.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _url(self, address: str, path: str) -> URL:
        known = self._urls.get((address, path))
        if known is None:
            if len(self._urls) > 4096:  # engines come and go at ever new ports
                self._urls.clear()
            known = self._urls[address, path] = URL(f"http://{address}{path}", encoded=True)
        return known


def failure_of(error: BaseException) -> EngineError:
    """What a failed read or connection says about the engine."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return EngineFaulty(said)  # our own shortage; nobody is gone
    if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
        return EngineStalled(said)
    return EngineGone(said)
