"""Telemetry of the requests that a gateway served."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from executors.gateway import telemetry_reporter
from executors.gateway.model_meter import ModelMeter
from executors.gateway.telemetry_spool import TelemetrySpool
from tests.integration.gateway.gateway_bench import MakeBench, total, until
from topics.records import RouteGroup, Routes
from topics.telemetry_columns import requests_by_kind
from topics.version_counts import read_counts


async def test_telemetry_states_zero_and_adds_up(bench: MakeBench) -> None:
    """Every model has a record each second. Its arrivals equal its ended requests plus those in
    flight.
    """
    b = await bench(speed=50.0)
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)), generation=7)
    b.route(model="mini", generation=3)
    await asyncio.gather(*(b.post() for _ in range(9)))
    engine.mode = "gate"
    waiting = asyncio.create_task(b.post())
    await until(lambda: total(b.link.records, "arrivals") == 10)
    chat = [record for record in b.link.records if record.model == "chat"]
    mini = [record for record in b.link.records if record.model == "mini"]
    await until(lambda: total(b.link.records, "completions") == 9)
    chat = [record for record in b.link.records if record.model == "chat"]
    assert total(chat, "arrivals") == total(chat, "completions") + chat[-1].in_flight == 10
    assert total(chat, "attained") == 9
    assert (total(chat, "input_tokens"), total(chat, "output_tokens")) == (63, 45)
    assert sum(sum(record.ttft_ms.values()) for record in chat) == 9
    assert sum(sum(record.tpot_ms.values()) for record in chat) == 9
    assert mini
    assert total(mini, "arrivals") == 0
    assert {record.route_generation for record in mini} == {3}
    assert chat[-1].route_generation == 7
    sequences = [record.sequence for record in b.link.records]
    assert len(set(sequences)) == len(sequences)
    for before, after in itertools.pairwise(chat):  # spans adjoin each other
        assert after.end_ms - after.span_ms == before.end_ms
    engine.gate.set()
    await waiting


async def test_telemetry_is_kept_while_the_broker_is_away(bench: MakeBench) -> None:
    """The records arrive complete and in order. Their ages give the right times."""
    b = await bench(speed=50.0)
    engine = await b.engine("e")
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    b.link.away = True
    await b.post()
    pending = b.gateway.reporter._pending
    await until(lambda: len(pending) >= 20)
    assert not b.link.records
    b.link.away = False
    await until(lambda: len(b.link.records) >= 20)
    sequences = [record.sequence for record in b.link.records]
    assert sequences == list(range(1, len(sequences) + 1))
    assert total(b.link.records, "arrivals") == total(b.link.records, "completions") == 1
    # The first record is sent alone to check whether the broker is back. Then all others follow.
    second, last = b.link.records[1], b.link.records[19]
    assert second.age_ms - last.age_ms == last.end_ms - second.end_ms


async def test_telemetry_survives_a_broker_that_is_away_and_a_restart(
    bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restarted gateway sends the records on disk with the boot id of the previous process."""
    monkeypatch.setattr(telemetry_reporter, "_SPOOL_THRESHOLD", 10)
    b = await bench(speed=100.0, state_dir=tmp_path)
    b.route()
    b.link.away = True
    b.link.records.clear()
    await until(lambda: bool(list(tmp_path.glob("telemetry-*"))))
    await b.gateway.__aexit__(None, None, None)
    assert not b.gateway.reporter._pending
    first = b.gateway.reporter
    second = await bench(speed=100.0, state_dir=tmp_path)
    await until(lambda: any(record.leaving for record in second.link.records))
    old = [record for record in second.link.records if record.boot == first.boot]
    numbers = sorted(record.sequence for record in old + b.link.records)
    assert numbers == list(range(1, first._sequence + 1))
    assert len(old) >= 10
    await until(lambda: not list(tmp_path.glob("telemetry-*")))


def test_the_spool_has_a_size_limit_and_drops_the_oldest(tmp_path: Path) -> None:
    spool = TelemetrySpool(tmp_path, limit_bytes=40_000)
    meter = ModelMeter()
    for number in range(1, 401):
        spool.append([meter.report("chat", "g", "boot", number, 1000 * number, 1000, 1)])
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 20_000 < size <= 40_000
    seen = []
    while found := spool.oldest():
        seen += [record.sequence for record in found[1]]
        spool.remove(found[0])
    assert seen == list(range(401 - len(seen), 401))
    assert spool.dropped == 400 - len(seen)


def test_an_incomplete_record_in_the_spool_is_skipped(tmp_path: Path) -> None:
    """A killed gateway or a full disk can leave such a record. Later records are complete."""
    spool = TelemetrySpool(tmp_path)
    spool.append([ModelMeter().report("chat", "g", "boot", 1, 1000, 1000, 1)])
    with (tmp_path / "telemetry-000000001.jsonl").open("ab") as file:
        file.write(b'{"schema_version":1,"mod')
    spool.append([ModelMeter().report("chat", "g", "boot", 2, 1000, 1000, 1)])
    found = spool.oldest()
    assert found is not None
    assert [record.sequence for record in found[1]] == [1, 2]
    assert spool.dropped == 1


async def test_a_clean_shutdown_signs_off_for_every_model(bench: MakeBench) -> None:
    """Only the last record of each model is marked as leaving."""
    b = await bench(speed=50.0)
    b.route()
    b.route(model="mini", generation=3)
    await until(lambda: len(b.link.records) >= 4)
    await b.gateway.__aexit__(None, None, None)
    for model in ("chat", "mini"):
        said = [record.leaving for record in b.link.records if record.model == model]
        assert said[-1] and not any(said[:-1])


async def test_a_gateway_that_dies_of_an_error_does_not_sign_off(bench: MakeBench) -> None:
    """The gateway will restart. Until then its silence is a loss of telemetry."""
    b = await bench(speed=50.0)
    b.route()
    await until(lambda: len(b.link.records) >= 2)
    await b.gateway.__aexit__(RuntimeError, RuntimeError("bug"), None)
    assert not any(record.leaving for record in b.link.records)


async def test_a_full_buffer_drops_the_oldest_and_counts_it(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_reporter, "_MAX_BUFFERED", 5)
    b = await bench(speed=50.0)
    b.link.away = True
    b.route()
    await until(lambda: b.gateway.reporter._sequence >= 12)
    assert await b.metric("telemetry_dropped_total") >= 1
    b.link.away = False
    await until(lambda: bool(b.link.records))
    assert b.link.records[0].sequence > 1


async def test_overhead_is_measured(bench: MakeBench) -> None:
    """The wait for an engine does not count as overhead."""
    b = await bench()
    engine = await b.engine("e")
    engine.mode = "gate"
    b.route(RouteGroup("g", 1.0, (engine.endpoint,)))
    waiting = asyncio.create_task(b.post())
    await until(lambda: bool(engine.seen))
    await asyncio.sleep(0.3)
    engine.gate.set()
    await waiting
    await until(lambda: total(b.link.records, "completions") == 1)
    assert await b.metric("overhead_ms_count") == 1
    assert 0.0 < await b.metric("overhead_ms_sum") < 200.0


async def test_no_record_comes_from_the_future(bench: MakeBench) -> None:
    """An event loop that wakes up slightly early still ends the present second."""
    b = await bench(speed=1.0)
    b.route()
    telemetry_reporter = b.gateway.reporter
    telemetry_reporter.end_span(b.gateway._clock.now_ms() + 50)
    assert await telemetry_reporter.flush()
    assert b.link.records[-1].age_ms == 0


async def test_arrivals_before_the_first_routes_count_in_their_own_second(
    bench: MakeBench,
) -> None:
    """Without these arrivals no instance would start. If they counted later, they would look like
    one burst. Only declared names are reported, for any alias.
    """
    b = await bench(
        speed=20.0, hold_s=600.0, declared_models={"chat": "chat", "org/chat-8b": "chat"}
    )
    records = b.link.records
    waiting = [asyncio.create_task(b.post(model="org/chat-8b")) for _ in range(3)]
    await until(lambda: total(records, "arrivals") == 3)
    waiting += [asyncio.create_task(b.post()) for _ in range(2)]
    waiting.append(asyncio.create_task(b.post(model="made-up")))
    await until(lambda: total(records, "arrivals") == 5)
    early = len(records)
    assert {record.model for record in records} == {"chat"}
    assert {record.route_generation for record in records} == {0}
    assert {record.completions for record in records} == {0}
    assert records[-1].in_flight == 5
    engine = await b.engine("e")
    b.gateway.table.apply(
        Routes("chat", 4, 1, 0, 2000.0, 60.0, (RouteGroup("g", 1.0, (engine.endpoint,)),),
               aliases=("org/chat-8b",))
    )  # fmt: skip
    assert [status for status, _ in await asyncio.gather(*waiting[:5])] == [200] * 5
    await until(lambda: total(records, "completions") == 5)
    assert total(records[early:], "arrivals") == 0
    assert records[-1].in_flight == 0
    assert records[-1].route_generation == 4
    for before, after in itertools.pairwise(records):  # spans adjoin each other
        assert after.end_ms - after.span_ms == before.end_ms
    waiting[5].cancel()


async def test_a_model_without_routes_is_reported_from_its_first_request_on(
    bench: MakeBench,
) -> None:
    """Without records a recommendation would never be withdrawn. A model without requests is not
    reported, because another gateway may serve it.
    """
    declared = {"chat": "chat", "mini": "mini"}
    b = await bench(speed=200.0, recommend_only=frozenset(declared), declared_models=declared)
    assert (await b.post())[0] == 503
    records = b.link.records
    await until(lambda: total(records, "refused") == 1)
    await until(lambda: records[-1].end_ms - records[0].end_ms >= 90_000)
    assert {record.model for record in records} == {"chat"}
    for before, after in itertools.pairwise(records):  # Spans are adjacent.
        assert after.end_ms - after.span_ms == before.end_ms


async def test_failures_and_answers_of_compared_versions_are_reported(bench: MakeBench) -> None:
    """A failed attempt counts for the version of its engine, although another one answers."""
    b = await bench(verify_real_s=0.05)
    bad, good = await b.engine("bad"), await b.engine("good")
    bad.mode = "status:503"
    b.route(
        RouteGroup("g1", 1.0, (bad.endpoint,), version="new"),
        RouteGroup("g2", 1.0, (good.endpoint,), version="old"),
    )
    answers = [await b.post() for _ in range(4)]
    assert [status for status, _ in answers] == [200] * 4
    await until(lambda: total(b.link.records, "completions") == 4)
    kinds = [one for record in b.link.records for one in requests_by_kind(record.sent)]
    found = read_counts(kinds)
    assert (found["new"].failed, found["new"].completed) == (1, 0)
    assert (found["old"].failed, found["old"].completed) == (0, 4)
