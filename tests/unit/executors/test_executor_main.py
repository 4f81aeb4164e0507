"""The process of an executor: its start, its ready line, its end and its exit codes."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from executors.node import executor_metrics
from executors.node import executor_process as process
from executors.node.executor import Executor
from executors.node.executor_config import ExecutorConfig, parse_config
from executors.node.load_publisher import LoadPublisher
from executors.node.state_store import StateStore
from tests.unit.executors.test_executor_config import GOOD
from topics.checks import InvalidValue
from topics.keys import Keys


class FakeKafka:
    """Notes what the executor follows."""

    made: list[FakeKafka] = []  # noqa: RUF012  one list for the class
    highest_token, forged, caught_up = 5, 0, True

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.calls: list[str] = []
        self.only: Any = None
        FakeKafka.made.append(self)

    async def __aenter__(self) -> FakeKafka:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.calls.append("closed")

    def follow(self, topics: Any, _record: Any, _gone: Any, only: Any) -> None:
        self.calls.append(f"follow {' '.join(topics)}")
        self.only = only

    def follow_leadership(self, _: Any) -> None:
        self.calls.append("follow leadership")

    async def publish(self, topic: str, key: str, _: Any) -> bool:
        self.calls.append(f"publish {topic} {key}")
        return True


class Ran:
    """A run of the process whose executor ends at once. supervised: by a parent process. shown: the
    ready line. ended: whether the engines were ended, for each close."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.end = asyncio.Event()
        self.ended: list[bool] = []
        self.shown: dict[str, Any] = {}
        self.fault: Exception | None = None
        self.supervised = True
        self.restored = 0
        self.config = parse_config({**GOOD, "state_dir": str(folder)})
        FakeKafka.made.clear()
        monkeypatch.setattr(process, "KafkaClient", FakeKafka)
        monkeypatch.setattr(process, "end_event", lambda _: self.end)
        monkeypatch.setattr(process, "supervision_fds", lambda: (3,) if self.supervised else ())
        ran = self

        async def run(executor: Executor, end: asyncio.Event) -> None:
            assert end is ran.end
            ran.shown = json.loads(capsys.readouterr().out)
            worker = executor.workers["n0"]
            assert await worker._publish(worker._status(1))
            if ran.fault is not None:
                raise ran.fault
            async with aiohttp.ClientSession() as http, http.get(ran.shown["metrics"]) as live:
                assert live.status == 200
            end.set()

        def restore(_: Executor) -> None:
            ran.restored += 1

        async def close(executor: Executor, end_engines: bool) -> None:
            ran.ended.append(end_engines)
            for worker in executor.workers.values():
                await worker.close()

        monkeypatch.setattr(Executor, "run", run)
        monkeypatch.setattr(Executor, "restore", restore)
        monkeypatch.setattr(Executor, "close", close)

    async def go(self) -> None:
        await process.run(self.config, Keys(), StateStore(self.config.state_dir))


@pytest.fixture
async def ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Ran:
    return Ran(monkeypatch, tmp_path, capsys)


async def test_an_executor_follows_its_nodes_and_states_that_it_is_ready(ran: Ran) -> None:
    await ran.go()
    shown = ran.shown
    assert (shown["ready"], shown["executor"], shown["nodes"]) == (True, "ex", 1)
    assert shown["metrics"].startswith("http://127.0.0.1:")
    (kafka,) = FakeKafka.made
    assert kafka.arguments[:3] == ("127.0.0.1:9", "ex", "shoal.") and set(kafka.only) == {"n0"}
    assert kafka.calls == [
        "follow assignments status", "follow leadership", "publish status n0", "closed",
    ]  # fmt: skip
    assert ran.restored == 1
    with pytest.raises(aiohttp.ClientConnectionError):
        async with aiohttp.ClientSession() as http:
            await http.get(shown["metrics"])


@pytest.mark.parametrize(
    ("supervised", "fault", "ends"), [(True, False, True), (False, False, False),
                                      (True, True, False)],
)  # fmt: skip
async def test_only_a_supervised_executor_that_is_told_to_end_ends_its_engines(
    ran: Ran, supervised: bool, fault: bool, ends: bool
) -> None:
    ran.supervised = supervised
    if fault:
        ran.fault = RuntimeError("a bug of ours")
        with pytest.raises(RuntimeError, match="a bug of ours"):
            await ran.go()
    else:
        await ran.go()
    assert ran.ended == [ends]


async def test_a_metrics_port_in_use_is_named(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> Any:
        raise OSError

    feeds: list[LoadPublisher] = []
    close = LoadPublisher.close

    def closes(publisher: LoadPublisher) -> None:
        feeds.append(publisher)
        close(publisher)

    monkeypatch.setattr(executor_metrics, "serve", refuse)
    monkeypatch.setattr(LoadPublisher, "close", closes)
    with pytest.raises(InvalidValue) as refusal:
        await ran.go()
    assert (refusal.value.field, refusal.value.allowed) == ("metrics_port", "a free port")
    assert len(feeds) == 1 and feeds[0]._context.closed


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log levels that were set up."""
    levels: list[str] = []
    monkeypatch.setattr(process, "log_to_stderr", lambda level, _form: levels.append(level))
    return levels


def file(folder: Path, **changes: Any) -> str:
    path = folder / "executor.json"
    path.write_bytes(orjson.dumps({**GOOD, "state_dir": str(folder / "state"), **changes}))
    return str(path)


def test_a_run_ends_with_0_and_releases_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: list[str]
) -> None:
    seen: list[ExecutorConfig] = []

    async def run(config: ExecutorConfig, _keys: Keys, store: StateStore) -> None:
        with pytest.raises(Exception, match="in use"):
            StateStore(config.state_dir).open()
        seen.append(config)

    monkeypatch.setattr(process, "run", run)
    assert process.main(["--config", file(tmp_path), "--log-level", "debug"]) == 0
    assert [one.executor for one in seen] == ["ex"] and quiet == ["debug"]
    StateStore(seen[0].state_dir).open()


def test_bad_input_ends_with_2_and_its_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quiet: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def run(*_: Any) -> None:
        raise InvalidValue("metrics_port", 9, "a free port")

    monkeypatch.setattr(process, "run", run)
    assert process.main(["--config", file(tmp_path, region="")]) == 2
    assert "executor: region" in capsys.readouterr().err
    assert process.main(["--config", file(tmp_path)]) == 2
    assert "executor: metrics_port" in capsys.readouterr().err
    held = StateStore(tmp_path / "state")
    held.open()
    assert process.main(["--config", file(tmp_path)]) == 2
    assert "in use by another executor" in capsys.readouterr().err
    held.close()
    with pytest.raises(SystemExit):
        process.main([])
    assert logging.getLevelName(quiet[0].upper()) == logging.INFO
