"""Access to a Prometheus with a bearer token and a certificate of a private authority."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests.exceptions import SSLError

from autoscaler.estimate.engine_view import EngineView
from streams.clock import Clock
from streams.files.prometheus_section import PrometheusServer
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.ports.engine_views import EngineViews
from streams.ports.promql import PromqlDemand, prometheus, rate_of
from tests.hang_limit import HANG_S
from topics.records import Alert
from topics.time_base import TimeBase

POOLS = "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
MODELS = "models: {chat: {source: openai/gpt-oss-20b, slo: {ttft: 2s, tpot: 100ms}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a self-signed certificate for 127.0.0.1."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem",
         "-out", tmp_path / "ca.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return tmp_path


@pytest.fixture
def headers() -> list[dict[str, str]]:
    """HTTP headers and path of the requests that `address` received."""
    return []


@pytest.fixture
def address(folder: Path, headers: list[dict[str, str]]) -> Iterator[str]:
    """The address of a server that answers 2.5 to each client with the token in the file `good`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            good = self.headers.get("Authorization") == f"Bearer {(folder / 'good').read_text()}"
            found = {"data": {"result": [{"metric": {}, "value": [0, "2.5"]}]}}
            headers.append({**self.headers, "path": self.path})
            self.send_response(200 if good else 401)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def declared(folder: Path, said: str) -> PrometheusServer:
    """The Prometheus server that the YAML `prometheus: {main: SAID}` declares, with `said` in place
    of SAID."""
    (folder / "shoal.yaml").write_text(f"prometheus: {{main: {said}}}\n{POOLS}{MODELS}")
    return load_config(folder / "shoal.yaml").prometheus["main"]


def test_the_token_is_read_for_each_query_and_the_authority_is_trusted(
    folder: Path, address: str
) -> None:
    server = declared(folder, f"{{url: '{address}/', token_file: token, ca_file: ca.pem}}")
    ask = prometheus(server)
    for token in ("first", "second"):
        (folder / "good").write_text(token)
        (folder / "token").write_text(f"{token}\n")
        assert rate_of(ask("up")) == 2.5
    (folder / "good").write_text("third")
    with pytest.raises(PrometheusApiClientException, match="401"):
        ask("up")


def test_the_tenant_is_sent_and_a_partial_answer_refused(
    folder: Path, address: str, headers: list[dict[str, str]]
) -> None:
    """Thanos and VictoriaMetrics answer without a store that is away, unless the query forbids
    it."""
    said = f"{{url: '{address}', ca_file: ca.pem, token_file: good, headers: {{X-Scope-OrgID: 7}}}}"
    (folder / "good").write_text("t")
    assert rate_of(prometheus(declared(folder, said))("up")) == 2.5
    assert headers[-1]["X-Scope-OrgID"] == "7"
    assert "partial_response=false&deny_partial_response=1" in headers[-1]["path"]


def test_a_wrong_token_is_not_printed_and_an_unknown_authority_is_not_trusted(
    folder: Path, address: str
) -> None:
    (folder / "token").write_text("secret one")
    with pytest.raises(ValueError, match="holds no token") as caught:
        prometheus(declared(folder, f"{{url: '{address}', token_file: token}}"))("up")
    assert "secret" not in str(caught.value)
    (folder / "token").unlink()
    with pytest.raises(OSError, match="token"):
        prometheus(declared(folder, f"{{url: '{address}', token_file: token}}"))("up")
    with pytest.raises(SSLError):
        prometheus(declared(folder, address))("up")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("here", "prometheus.main: 'here' is not allowed; allowed: http\\(s\\)://HOST"),
        ("'http://here:port'", "prometheus.main"),
        ("{token_file: t}", "prometheus.main.url: is missing"),
        ("{url: 'http://a', headers: {a b: c}}", "prometheus.main.headers.a b: is not allowed"),
        ("{url: 'http://a', headers: {Authorization: c}}", "allowed: the name of an HTTP header"),
        ("{url: 'http://a', headers: {X: ''}}", "headers.X: '' is not allowed; allowed: a text of"),
        ("{url: 'http://a', headers: {X: \"a\\r\\nb: c\"}}", "headers.X: .* is not allowed"),
        ("{url: 'http://a', token: t}", "prometheus.main.token: unknown key; did you mean token_f"),
    ],
)
def test_a_malformed_address_is_refused(tmp_path: Path, said: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        declared(tmp_path, said)


@pytest.mark.parametrize(
    "body",
    [
        '{"data": null}', '{"data": {"result": null}}', "[1]", "{}", '{"data": {"result": 1}}',
        '{"data": {"result": [1]}}', '{"data": {"result": [{"metric": "x", "value": [0, "1"]}]}}',
        '{"data": {"result": [{"metric": {"le": 1}, "value": [0, "1"]}]}}',
        '{"data": {"result": [{"metric": {}, "value": [0, 1]}]}}',
    ],
)  # fmt: skip
async def test_an_unexpected_answer_is_no_data(body: str) -> None:
    """An unexpected answer of a proxy neither stops telemetry nor the delivery of an alert."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        port = server.server_address[1]
        ask = prometheus(PrometheusServer(f"http://ann:hush@127.0.0.1:{port}"))
        with pytest.raises(ValueError, match=f"the answer of http://127.0.0.1:{port} is no result"):
            ask("q")
        clock = Clock(TimeBase(1.0, 1_000_000, 0))
        reported: list[int] = []
        source = PromqlDemand({"p": ask}, {"m": ("q",)}, clock)
        await source.ask_all(lambda records, _: reported.append(len(records)))
        assert reported == [0]
        delivered: asyncio.Queue[Mapping[str, EngineView]] = asyncio.Queue()
        views = EngineViews(
            [ask], lambda: {"m": ("m",)}, clock.now_ms, lambda _, found: delivered.put_nowait(found)
        )
        views.take(Alert("f", "Late", "firing", clock.now_ms()))
        async with asyncio.timeout(HANG_S):
            assert (await delivered.get())["m"].error == "Prometheus knows none"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
