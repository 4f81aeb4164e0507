"""`shoal notify`: one notice of each change that people must know reaches its receivers."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import orjson
import pytest

from streams.cli import notify
from streams.cli.main import main
from streams.cli.notices import Notice, Notices


def status(level: str = "ok", proposal: int = 0, leads: bool = True, **more: Any) -> dict[str, Any]:
    model = {"model": "chat", "level": level, "word": f"it is {level}", "proposal": proposal}
    return {"leads": leads, "models": [model] if leads else [], **more}


def sent(notices: Notices, states: list[tuple[float, dict[str, Any]]]) -> list[tuple[float, str]]:
    return [
        (at_s, f"{one.model}:{one.level}:{one.proposal}:{one.ended}")
        for at_s, state in states
        for one in notices.of_status(state, at_s)
    ]


def test_a_state_that_lasts_is_told_once_and_its_end_too() -> None:
    states = [(float(s), status("broken" if 10 <= s < 60 else "ok")) for s in range(0, 120, 5)]
    assert sent(Notices(30.0), states) == [
        (40.0, "chat:broken:0:False"),
        (90.0, "chat:ok:0:True"),
    ]


def test_a_short_state_and_a_state_that_is_no_fault_are_not_told() -> None:
    flapping = [(float(s), status("broken" if s % 20 == 0 else "ok")) for s in range(0, 200, 5)]
    assert not sent(Notices(30.0), flapping)
    calm = [(float(s), status("attention" if s > 50 else "ok")) for s in range(0, 200, 5)]
    assert not sent(Notices(30.0), calm)


def test_a_model_that_changes_between_at_risk_and_broken_is_reported() -> None:
    levels = ("at_risk", "broken")
    states = [(float(s), status(levels[s // 20 % 2])) for s in range(0, 200, 5)]
    assert sent(Notices(30.0), states) == [(30.0, "chat:broken:0:False")]
    rising = [(float(s), status(levels[s >= 60])) for s in range(0, 120, 5)]
    assert sent(Notices(30.0), rising) == [
        (30.0, "chat:at_risk:0:False"),
        (60.0, "chat:broken:0:False"),
    ]


def test_each_proposal_is_told_once_and_at_once() -> None:
    states = [(float(s), status("attention", 7 if s < 60 else 9)) for s in range(0, 120, 5)]
    assert sent(Notices(30.0), states) == [
        (0.0, "chat:attention:7:False"),
        (60.0, "chat:attention:9:False"),
    ]


def test_a_silent_controller_is_told_and_a_standby_says_nothing_on_models() -> None:
    notices = Notices(10.0)
    assert not sent(notices, [(0.0, status(leads=False)), (5.0, status("broken", leads=False))])
    silent = [one for at_s in (6.0, 16.0, 26.0) for one in notices.of_silence("no answer", at_s)]
    assert silent == [Notice("", "broken", "no answer")]
    assert sent(notices, [(30.0, status()), (40.0, status())]) == [(40.0, ":ok:0:True")]


def test_a_withdrawn_model_is_forgotten() -> None:
    notices = Notices(0.0)
    states = [
        (0.0, status("broken")),
        (1.0, {"leads": True, "models": []}),
        (2.0, status("broken")),
    ]
    assert [text for _, text in sent(notices, states)] == ["chat:broken:0:False"] * 2


class Receiver(BaseHTTPRequestHandler):
    """Fails the first request, and keeps the bodies of the others."""

    asked = 0
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        Receiver.asked += 1
        if Receiver.asked > 1:
            Receiver.bodies.append(data)
        self.send_response(500 if Receiver.asked == 1 else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Mailbox(socketserver.StreamRequestHandler):
    """Takes one mail by SMTP."""

    lines: ClassVar[list[str]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        in_data = False
        for raw in self.rfile:
            text = raw.decode().rstrip("\r\n")
            if in_data:
                Mailbox.lines.append(text)
                in_data = text != "."
            if not in_data:
                in_data = text.upper() == "DATA"
                self.wfile.write(b"354 go on\r\n" if in_data else b"250 ok\r\n")
            if text.upper() == "QUIT":
                return


@pytest.fixture
def served() -> Iterator[tuple[str, tuple[str, int]]]:
    """The URL of a receiver, and the address of a mail server."""
    servers = [
        HTTPServer(("127.0.0.1", 0), Receiver),
        socketserver.TCPServer(("127.0.0.1", 0), Mailbox),
    ]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    http, mail = (server.server_address for server in servers)
    yield f"http://127.0.0.1:{http[1]}/hook", ("127.0.0.1", int(mail[1]))
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_message_reaches_a_webhook_slack_and_a_mailbox(
    served: tuple[str, tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt fails, and is repeated."""
    url, smtp = served
    monkeypatch.setattr(notify, "wait_exponential", lambda *_, **__: lambda _: 0.0)
    both = Notice("chat", "broken", "no instance is ready"), Notice("code", "at_risk", "slow")
    for kind, address in (("webhook", url), ("slack", url), ("mail", "ops@example.org")):
        notify._deliver(kind, address, both, "http://c:8702", smtp, "shoal@localhost")
    hook, slack = (orjson.loads(one) for one in Receiver.bodies)
    assert slack == {"text": "chat: broken: no instance is ready\ncode: at risk: slow"}
    assert [one["model"] for one in hook["notices"]] == ["chat", "code"]
    assert hook["url"] == "http://c:8702"
    subject = "Subject: Shoal: chat: broken: no instance is ready (and 1 more)"
    assert subject in Mailbox.lines and "code: at risk: slow" in Mailbox.lines


@pytest.mark.parametrize(
    "to", ["pager=http://x", "slack=", "slack=ftp://x", "mail=nobody", "webhook=@/no/such/file"]
)
def test_a_wrong_receiver_is_refused(to: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify", "--to", to]) == 2
    assert "--to" in capsys.readouterr().err
