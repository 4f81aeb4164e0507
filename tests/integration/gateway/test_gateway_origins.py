"""Browser pages on the same machine cannot use a gateway on loopback."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.integration.gateway.gateway_bench import Bench, MakeBench
from topics.checks import InvalidValue
from topics.http_origin import parse_host_names

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}


async def ask(bench: Bench, method: str, path: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = bench.gateway.url + path
    body = CHAT if method == "POST" else None
    async with bench.http.request(method, url, json=body, headers=named) as answer:
        await answer.read()
        return answer.status


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics"])
async def test_an_undeclared_host_name_that_resolves_to_loopback_is_refused(
    bench: MakeBench, path: str
) -> None:
    made = await bench(host_names=frozenset({"gateway.example"}))
    assert await ask(made, "GET", path, Host="attacker.example") == 421
    for host in ("127.0.0.1:1", "localhost", "[::1]:8700", "gateway.example"):
        assert await ask(made, "GET", path, Host=host) == 200


@pytest.mark.parametrize("header", [{"Origin": "https://attacker.example"}, {"Origin": "null"},
                                    {"Sec_Fetch_Site": "cross-site"}])  # fmt: skip
async def test_a_page_of_another_site_cannot_send_requests(
    bench: MakeBench, header: dict[str, str]
) -> None:
    made = await bench(hold_s=0.1)
    assert await ask(made, "POST", "/v1/chat/completions", **header) == 403
    own = {"Origin": made.gateway.url, "Sec_Fetch_Site": "same-origin"}
    assert await ask(made, "POST", "/v1/chat/completions", **own) == 503  # The model has no routes.
    assert await ask(made, "POST", "/v1/chat/completions") == 503


async def test_with_api_keys_pages_of_other_sites_may_send_requests(
    bench: MakeBench, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"key").hexdigest()
    keys.write_text(f"keys: [{{name: web, sha256: {digest}, models: ['*']}}]")
    keys.chmod(0o600)
    made = await bench(keys_file=keys, hold_s=0.1)
    page = {"Origin": "https://app.example"}
    assert await ask(made, "POST", "/v1/chat/completions", **page) == 401
    page["Authorization"] = "Bearer key"
    assert await ask(made, "POST", "/v1/chat/completions", **page) == 503


@pytest.mark.parametrize("text", ["a:80", "http://a", "a b", "a\nb", "*", "ä"])
def test_an_invalid_host_name_cannot_be_declared(text: str) -> None:
    with pytest.raises(InvalidValue, match="--allowed-hosts"):
        parse_host_names("--allowed-hosts", f"good.example,{text}")
