"""Every Shoal client with a real Kafka that requires TLS, a login and a client certificate.

If one of them is missing, the error message is checked. The broker is started only for these tests
(`make kafka ARGS="--secure FOLDER"`), on its own port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from executors.kafka_client import KafkaClient
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import ensure_topics
from streams.cli.main import main
from streams.tools.up.host_resources import free_port
from tests.acceptance.shoal_up import ONE_MODEL, Run, shoal
from tests.hang_limit import HANG_S

pytestmark = pytest.mark.kafka

_RUN = Path(__file__).parents[2] / "deploy" / "kafka" / "run.sh"
_START_S = HANG_S


@dataclass(frozen=True)
class Secure:
    """A secure listener. address: HOST:PORT. folder: files that clients need."""

    address: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables in FOLDER/environment."""
        lines = (self.folder / "environment").read_text().splitlines()
        found = (line.removeprefix("export ").partition("=") for line in lines)
        return {name: value.strip("'") for name, _, value in found}


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    if not os.environ.get("SHOAL_TEST_KAFKA"):
        pytest.skip("no real Kafka: run `make kafka` and set SHOAL_TEST_KAFKA=HOST:PORT")
    folder = tmp_path_factory.mktemp("secure")
    port = free_port()
    kafka = subprocess.Popen(
        [_RUN, "--port", str(port), "--secure", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert kafka.stdout is not None
    try:
        said = []
        for line in kafka.stdout:
            said.append(line)
            if "clients need" in line:
                break
        else:
            raise AssertionError("".join(said))
        yield Secure(f"127.0.0.1:{port}", folder)
    finally:
        kafka.send_signal(signal.SIGTERM)
        kafka.wait(10)


@pytest.fixture
def secure(listener: Secure, monkeypatch: pytest.MonkeyPatch) -> Secure:
    """The listener, with the settings that it requires in the environment."""
    for name, value in listener.environment.items():
        monkeypatch.setenv(name, value)
    return listener


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_topics_are_made_by_each_mechanism(
    mechanism: str, secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The admin client logs in."""
    monkeypatch.setenv("SHOAL_KAFKA_MECHANISM", mechanism)
    found = await ensure_topics(secure.address, f"{mechanism}.")
    assert found.created and not found.embedded


def test_shoal_up_serves_all_requests_with_a_secure_broker(secure: Secure, tmp_path: Path) -> None:
    """Controller with transactions, executors, gateway and `shoal up` itself: all requests are
    served.
    """
    run = Run(tmp_path, "--broker", f"kafka://{secure.address}", "--for", "45")
    try:
        assert run.end() == 0, run.errors
    finally:
        run.discard()
    requests = run.summary["requests"]
    assert requests["sent"] > 10 and requests["served"] >= 0.98 * requests["sent"], requests


async def test_window_workers_get_partitions(secure: Secure) -> None:
    """This covers the consumer, the group and the producer of Faust."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams.windows", "--broker", secure.address, "--prefix", "w.",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        async with asyncio.timeout(_START_S):
            said = json.loads(await worker.stdout.readline())
        assert said == {"ready": True, "partitions": 8}
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


def test_feeds_are_published_and_the_doctor_is_content(
    secure: Secure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This covers commands that write, and one that only reads."""
    prices, config = tmp_path / "prices.json", tmp_path / "shoal.yaml"
    prices.write_text('{"eu/l4/owned": 0.5}')
    config.write_text(f"kafka: {secure.address}\n{ONE_MODEL}")
    assert main(["feed", "prices", "--from", str(prices), "--broker", secure.address]) == 0
    main(["doctor", "--config", str(config), "--url", "http://127.0.0.1:9"])
    assert f"ok kafka {secure.address} answers" in " ".join(capsys.readouterr().out.split())


WRONG = {
    "password": ({"SHOAL_KAFKA_PASSWORD_FILE": "WRONG"}, "refuses the login of shoal by SCRAM"),
    "authority": ({"SHOAL_KAFKA_CA_FILE": ""}, "certificate is not trusted"),
    "no login": ({"SHOAL_KAFKA_PROTOCOL": "SSL"}, "it closed the connection; SHOAL_KAFKA_PROTOCOL"),
    "no certificate": (
        {"SHOAL_KAFKA_CERT_FILE": "", "SHOAL_KAFKA_KEY_FILE": ""},
        "another protocol, or a certificate (SHOAL_KAFKA_CERT_FILE)?",
    ),
    "plaintext": ({"SHOAL_KAFKA_PROTOCOL": "PLAINTEXT"}, "PROTOCOL is PLAINTEXT: does the port"),
}


@pytest.fixture(params=WRONG)
def refused(
    request: pytest.FixtureRequest,
    secure: Secure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Make one setting wrong. Returns the expected message."""
    change, words = WRONG[request.param]
    (tmp_path / "password").write_text("another\n")
    for name, value in change.items():
        monkeypatch.setenv(name, str(tmp_path / "password") if value == "WRONG" else value)
    return words


def test_every_command_states_in_one_line_why_the_broker_refuses_it(
    refused: str, listener: Secure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends before it starts any process, and without log lines of the Kafka client."""
    config, prices = tmp_path / "shoal.yaml", tmp_path / "prices.json"
    config.write_text(f"kafka: {listener.address}\n{ONE_MODEL}")
    prices.write_text('{"eu/l4/owned": 0.5}')
    to = ["--config", str(config)]
    for command in (
        ["controller", *to],
        ["gateway", *to],
        ["executor", *to, "--region", "eu", "--state-dir", str(tmp_path / "state")],
        ["windows", *to],
        ["apply", *to],
        ["feed", "prices", "--from", str(prices), "--broker", listener.address],
    ):
        assert main(command) == 2, command
        (line,) = capsys.readouterr().err.splitlines()
        assert refused in line, command
    assert main(["doctor", *to, "--url", "http://127.0.0.1:9"]) == 1
    assert refused in " ".join(capsys.readouterr().out.split())
    # The command ends all children of its process, so it needs its own process.
    up = [shoal(), "up", *to, "--broker", f"kafka://{listener.address}"]
    ended = subprocess.run(up, capture_output=True, text=True, timeout=60.0)
    assert ended.returncode == 2
    assert refused in ended.stderr and len(ended.stderr.splitlines()) == 1


async def test_running_processes_log_a_withdrawn_login_once_and_retry(
    refused: str, listener: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    """This holds for a gateway and an executor. A controller without a login does not start."""
    told = asyncio.Event()

    class Telling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if refused in record.getMessage():
                told.set()

    handler = Telling()
    logging.getLogger("executors").addHandler(handler)
    try:
        with caplog.at_level(logging.WARNING, logger="executors"):
            async with KafkaClient(listener.address, "gateway"):
                async with asyncio.timeout(HANG_S):
                    await told.wait()
                await asyncio.sleep(1.5)  # several more tries
    finally:
        logging.getLogger("executors").removeHandler(handler)
    ours = [r for r in caplog.records if r.name.startswith("executors")]
    assert len(ours) == 1
    with pytest.raises(BrokerUnreachable, match=refused):
        await ensure_topics(listener.address, "x.")
