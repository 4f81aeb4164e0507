"""The live view on an in-memory terminal, and as plain lines without a terminal."""

from __future__ import annotations

import io

import pyte
from rich.console import Console

from streams.tools.up.event_log import Event
from streams.tools.up.live_view import View
from streams.tools.up.run_state import Picture
from streams.tools.up.screen_layout import Facts, screen
from tests.unit.tools.up.status_records import NOW_MS, telemetry

TITLE = "shoal: trace.csv at 10x"
FACTS = Facts((TITLE,), "API | Ctrl-C stops everything", (), NOW_MS - 9000, 10, 9, 0, 1.0, None)


class Into(io.StringIO):
    """A stream that writes to an in-memory terminal. left: whether the
    alternate screen was closed.
    """

    def __init__(self, terminal: pyte.Screen) -> None:
        super().__init__()
        self._stream = pyte.Stream(terminal)
        self.left = False

    def write(self, text: str) -> int:
        self.left = self.left or "\x1b[?1049l" in text
        self._stream.feed(text.replace("\n", "\r\n"))
        return len(text)


def lines(terminal: pyte.Screen) -> list[str]:
    return [line.rstrip() for line in terminal.display]


def expected(picture: Picture, columns: int, rows: int) -> list[str]:
    shown = [line.plain.rstrip() for line in screen(picture, NOW_MS, FACTS, columns, rows)]
    return shown + [""] * (rows - len(shown))


def test_a_resize_leaves_no_remains_of_the_old_view(picture: Picture) -> None:
    """The screen shows the view at the new size."""
    picture.add(telemetry())
    terminal = pyte.Screen(100, 24)
    console = Console(file=Into(terminal), force_terminal=True, width=100, height=24)
    view = View(console)
    view.start()
    for columns, rows in ((100, 24), (60, 12), (80, 24), (100, 12), (60, 30)):
        terminal.resize(rows, columns)
        console.size = (columns, rows)  # type: ignore[assignment]
        view.update(picture, NOW_MS, FACTS)
        assert lines(terminal) == expected(picture, columns, rows)
    view.stop()


def test_the_last_view_stays_after_the_end(picture: Picture) -> None:
    terminal = pyte.Screen(80, 24)
    into = Into(terminal)
    view = View(Console(file=into, force_terminal=True, width=80, height=24))
    view.start()
    view.update(picture, NOW_MS, FACTS)
    assert not into.left
    terminal.reset()
    view.stop()
    assert into.left
    assert lines(terminal)[0] == TITLE


def test_without_a_terminal_each_event_and_each_state_is_one_line(picture: Picture) -> None:
    said = io.StringIO()
    view = View(Console(file=said, width=80))
    view.start()
    picture.story.add([Event(NOW_MS, "controller was killed (SIGKILL); starting it again", True)])
    for _ in range(3):
        view.update(picture, NOW_MS, FACTS)
    view.stop()
    text = said.getvalue().splitlines()
    assert text.count(TITLE) == 1
    assert text.count("+00:09 controller was killed (SIGKILL); starting it again") == 1
