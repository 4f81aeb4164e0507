"""API keys: permitted models, rates, and changes of their file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from executors.gateway.api_keys import InvalidKeysFile, parse_keys
from tests.integration.gateway.gateway_bench import Bench, MakeBench
from topics.checks import InvalidValue
from topics.records import RouteGroup


def entry(secret: str, *more: str) -> str:
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return "\n  ".join((f"- name: holder-{secret}", f"sha256: {digest}", *more)) + "\n"


async def ask(b: Bench, secret: str, model: str = "chat") -> tuple[int, dict[str, str]]:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    url = b.gateway.url + "/v1/completions"
    async with b.http.post(url, json=b.body(model=model), headers=headers) as answer:
        await answer.read()
        return answer.status, dict(answer.headers)


async def test_keys_limit_models_and_rate_and_follow_changes_of_the_file(
    bench: MakeBench, tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        "keys:\n"
        + entry("one", "models: [chat]")
        + entry("slow", "models: ['*']", "requests_per_minute: 2")
    )
    b = await bench(keys_file=file)
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    b.route(model="other")
    assert (await ask(b, ""))[0] == 401
    assert (await ask(b, "wrong"))[0] == 401
    assert (await ask(b, "one"))[0] == 200
    assert (await ask(b, "one", "other"))[0] == 403
    async with b.http.get(
        b.gateway.url + "/v1/models", headers={"Authorization": "Bearer one"}
    ) as answer:
        assert [model["id"] for model in (await answer.json())["data"]] == ["chat"]
    statuses = [await ask(b, "slow") for _ in range(3)]
    assert [status for status, _ in statuses] == [200, 200, 429]
    assert 20 <= int(statuses[2][1]["Retry-After"]) <= 31

    file.write_text("keys:\n" + entry("two", "models: ['*']"))
    os.utime(file, ns=(1, 1))
    b.gateway._access.reload_if_changed()
    assert (await ask(b, "two"))[0] == 200
    assert (await ask(b, "one"))[0] == 401

    file.write_text("keys: [")
    b.gateway._access.reload_if_changed()
    assert (await ask(b, "two"))[0] == 200  # the last valid keys
    assert await b.metric("keys_errors_total") == 1
    file.unlink()
    b.gateway._access.reload_if_changed()
    assert (await ask(b, "two"))[0] == 200
    assert all("Authorization" not in headers for headers in engine.headers)


async def test_a_start_with_a_bad_file_is_refused(bench: MakeBench, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("keys: 3")
    with pytest.raises(InvalidKeysFile, match="keys"):
        await bench(keys_file=file)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "keys"),
        ("keys: {}", "keys"),
        ("keys: [3]", "keys[0]"),
        ("keys: [{name: a}]", "keys[0].sha256"),
        ("keys: [{name: a, sha256: the-key-itself, models: ['*']}]", "keys[0].sha256"),
        ("keys: [{name: a, sha256: %s}]" % ("a" * 64), "keys[0].models"),
        ("keys: [{name: a, sha256: %s, models: []}]" % ("a" * 64), "keys[0].models"),
        ("keys: [{name: a, sha256: %s, models: [a], x: 1}]" % ("a" * 64), "keys[0].x"),
        ("keys: [{name: a, sha256: %s, models: [a], requests_per_minute: .nan}]" % ("a" * 64),
         "keys[0].requests_per_minute"),
    ],
)  # fmt: skip
def test_bad_files_name_the_field_and_never_show_a_key(text: str, field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        parse_keys(text)
    assert refused.value.field == field
    assert "the-key-itself" not in str(refused.value)
