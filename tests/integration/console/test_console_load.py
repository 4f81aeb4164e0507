"""The load of open pages on the controller."""

from __future__ import annotations

import socket
import threading
import time
from urllib.parse import urlsplit

from tests.integration.console.staged_console import LARGE, served

VIEWERS = 10
STEPS = 30


def follow(
    address: tuple[str, int], last_id: str, counted: list[int], stop: threading.Event
) -> None:
    with socket.create_connection(address) as sock:
        head = f"GET /v1/events HTTP/1.1\r\nHost: {address[0]}\r\nLast-Event-ID: {last_id}\r\n\r\n"
        sock.sendall(head.encode())
        sock.settimeout(0.2)
        while not stop.is_set():
            try:
                counted.append(sock.recv(1 << 20).count(b"event: change"))
            except TimeoutError:
                continue


def test_ten_pages_cost_less_than_a_fiftieth_of_a_core() -> None:
    """CPU time of the server's thread per event, for 100 models whose figures all change. An event
    is built at most once a second. Building it is limited to a hundredth of a core.
    """
    with served(LARGE) as at:
        parts = urlsplit(at.url)
        address = (parts.hostname or "", parts.port or 0)
        at.do(lambda: at.feed.snapshot())
        stop, counts = threading.Event(), [list[int]() for _ in range(VIEWERS)]
        last_id = f"{at.feed.stream}:{at.feed.hub.number}"
        threads = [
            threading.Thread(target=follow, args=(address, last_id, one, stop)) for one in counts
        ]
        for thread in threads:
            thread.start()
        while at.do(lambda: at.feed.hub.viewers) < VIEWERS:
            time.sleep(0.05)
        began_s = at.do(time.thread_time)
        drift_s = 0.0
        for _ in range(STEPS):
            drift_s += at.timed_step()
            time.sleep(0.02)
        used_s = at.do(time.thread_time) - began_s - drift_s
        while min(map(sum, counts)) < STEPS:
            time.sleep(0.05)
        stop.set()
        for thread in threads:
            thread.join()
        assert at.feed.hub.dropped == 0
        print(f"{1000 * used_s / STEPS:.1f} CPU ms for each event and ten pages")
        assert used_s / STEPS < 0.02, used_s / STEPS
