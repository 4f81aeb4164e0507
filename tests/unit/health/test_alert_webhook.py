"""The alert webhook: models of alerts, refused alerts, and retries by the sender."""

from __future__ import annotations

import dataclasses

import aiohttp
import pytest

from autoscaler.domain.cluster import Cluster
from streams.health.alert_webhook import MOST_BYTES
from tests.unit.health.served_controller import (
    POOL,
    TINY,
    TOKEN,
    Made,
    get,
    payload,
    post,
)


async def test_alerts_are_published_once_with_their_models(made: Made) -> None:
    assert await post(made, payload("a", "b")) == 200
    assert await post(made, payload("a", "b")) == 200
    assert await post(made, payload("a", state="resolved")) == 200
    assert [(a.fingerprint, a.state) for a in made.alerts] == [
        ("a", "firing"),
        ("b", "firing"),
        ("a", "resolved"),
    ]
    assert made.alerts[0].models == ("tiny",)
    assert made.alerts[0].starts_ms == 1_700_000_000_123


def naming(label: str, model: str) -> bytes:
    return payload("a").replace(b'"model": "tiny, other"', f'"{label}": "{model}"'.encode())


async def post_alert(made: Made, body: bytes) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(made.url + "/alerts", data=body, headers=headers) as answer,
    ):
        return answer.status, (await answer.json())["said"]


@pytest.mark.parametrize("label", ["model", "model_name"])
async def test_an_alert_may_name_a_model_by_its_hugging_face_name(made: Made, label: str) -> None:
    """vLLM labels its series with this name unless it has a served model name."""
    status, words = await post_alert(made, naming(label, TINY.architecture.name))
    assert (status, words) == (200, "1 new of 1")
    assert [alert.models for alert in made.alerts] == [("tiny",)]


async def test_an_alert_may_name_a_model_as_vllm_serves_it(made: Made) -> None:
    """Alerts on vLLM's series carry the declared name in `model_name`."""
    made.cluster = Cluster((POOL,), (dataclasses.replace(TINY, served_as=("acme/tiny",)),))
    status, words = await post_alert(made, naming("model_name", "acme/tiny"))
    assert (status, words) == (200, "1 new of 1")
    assert [alert.models for alert in made.alerts] == [("tiny",)]


async def test_an_alert_for_a_shared_source_counts_for_every_model_with_it(made: Made) -> None:
    made.cluster = Cluster((POOL,), (TINY, dataclasses.replace(TINY, model="small")))
    await post_alert(made, naming("model", TINY.architecture.name))
    assert [alert.models for alert in made.alerts] == [("tiny", "small")]


async def test_an_alert_for_an_undeclared_model_is_named_and_counted(made: Made) -> None:
    status, words = await post_alert(made, naming("model", "ghost"))
    assert (status, words) == (200, "0 new of 1, no declared model: ghost")
    assert made.alerts == []
    assert 'shoal_alerts_total{result="unknown_model"} 1.0' in (await get(made, "/metrics"))[1]
    made.cluster = Cluster((POOL,), (TINY, dataclasses.replace(TINY, model="ghost")))
    assert await post_alert(made, naming("model", "ghost")) == (200, "1 new of 1")


async def test_an_alert_may_have_any_name_and_no_model(made: Made) -> None:
    """Alert names may contain spaces. A label without a value names no model."""
    text = payload("a").replace(b"Late", b"GPU too hot").replace(b'"tiny, other"', b"null")
    assert await post(made, text) == 200
    assert [(a.name, a.models) for a in made.alerts] == [("GPU too hot", ())]


async def test_an_unreadable_alert_does_not_affect_the_others(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    assert await post(made, payload("a", "bad name", "b")) == 200
    assert [a.fingerprint for a in made.alerts] == ["a", "b"]
    _, text = await get(made, "/metrics")
    assert 'shoal_alerts_total{result="refused"} 1.0' in text
    assert "alerts[1].fingerprint: 'bad name' is not allowed" in caplog.text


async def test_a_body_that_cannot_be_decompressed_is_refused_without_a_traceback(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client can send such a body, even without a token."""
    for encoding in ("gzip", "br", "zstd"):
        assert await post(made, b"not that", **{"Content-Encoding": encoding}) == 400
    assert await post(made, b"no gzip", token="wrong", **{"Content-Encoding": "gzip"}) == 401
    assert caplog.text == ""
    assert await post(made, payload("a")) == 200


async def test_alerts_without_a_token_too_large_or_too_frequent_are_refused(made: Made) -> None:
    assert await post(made, payload("a"), token="wrong") == 401
    assert await post(made, b"x" * (MOST_BYTES + 1)) == 413
    assert await post(made, b"{}") == 400
    assert await post(made, payload("bad name")) == 400
    codes = [await post(made, payload("a")) for _ in range(130)]
    assert codes.count(429) >= 10 and codes[0] == 200
    made.now_s = 61.0
    assert await post(made, payload("a")) == 200
    assert len(made.alerts) == 1


async def test_the_sender_is_asked_to_retry_while_the_broker_is_unreachable(made: Made) -> None:
    made.broken = True
    assert await post(made, payload("a")) == 503
    made.broken = False
    assert await post(made, payload("a")) == 200
    assert len(made.alerts) == 1
