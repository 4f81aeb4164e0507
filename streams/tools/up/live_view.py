"""The live view of a run on a terminal, or plain lines if there is no terminal.

On a terminal the whole view is redrawn on the alternate screen, so that old text does not remain
after a resize. At the end the last view stays on the normal screen. Without a terminal the view
prints one line per model at intervals, and each event once.
"""

from __future__ import annotations

import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from streams.terminal_console import SafeConsole
from streams.tools.up.quality_view import service_parts
from streams.tools.up.run_state import Picture
from streams.tools.up.screen_layout import Facts, facts_parts, screen, table, unmet_lines

_PLAIN_EVERY_S = 10.0
_PLAIN_WIDTH = 120
_LEAST_WIDTH, _LEAST_HEIGHT = 40, 6


class View:
    """Shows a `Picture` repeatedly. Call `start` first, `update` repeatedly,
    and `stop` at the end.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or SafeConsole(file=sys.stdout, highlight=False)
        self._live: Live | None = None
        self._last: tuple[Picture, int, Facts] | None = None
        self._printed = 0
        self._next_plain_s = 0.0
        self._heading: tuple[str, ...] = ()

    def start(self) -> None:
        """Switch the terminal, if there is one, to the alternate screen."""
        if self.console.is_terminal:
            self._live = Live(console=self.console, screen=True, auto_refresh=False)
            self._live.start()

    def stop(self) -> None:
        """Restore the normal screen and print the last view."""
        if self._live is None:
            return
        self._live.stop()
        self._live = None
        if self._last is not None:
            for line in screen(*self._last, self.console.width):
                self.console.print(line, soft_wrap=True)

    def update(self, picture: Picture, now_ms: int, facts: Facts) -> None:
        """Show the current state."""
        self._last = picture, now_ms, facts
        if self._live is None:
            self._plain(picture, now_ms, facts)
            return
        size = self.console.size
        width, height = max(_LEAST_WIDTH, size.width), max(_LEAST_HEIGHT, size.height)
        self._live.update(Group(*screen(picture, now_ms, facts, width, height)), refresh=True)

    def _plain(self, picture: Picture, now_ms: int, facts: Facts) -> None:
        heading = (*facts.title, facts.state, *facts.alerts)
        for line in heading:
            if line not in self._heading:
                self._say(line)
        self._heading = heading
        for event in picture.story.since(self._printed):
            self._say(event.line(facts.began_ms))
        self._printed = picture.story.count
        if time.monotonic() < self._next_plain_s:
            return
        self._next_plain_s = time.monotonic() + _PLAIN_EVERY_S
        self._say(" | ".join(text for text, _ in facts_parts(picture, now_ms, facts)))
        rows = table(picture.rows(now_ms), _PLAIN_WIDTH)
        services = [" | ".join(service_parts(row)) for row in picture.services(now_ms)]
        unmet = unmet_lines(picture, now_ms)
        for line in (*(row.plain.rstrip() for row in rows), *services, *unmet):
            self._say("  " + line)

    def _say(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True)
