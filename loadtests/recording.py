"""Record the output of `make run` in its first three minutes as text: `make recording`.

    python -m loadtests.recording [--seconds 180] [--out docs/results/recording.md] [--readme
    README.md]

`make run` runs on an in-memory terminal. At each recorded moment the terminal is resized to 100 and
80 columns, and its text is copied. At the end Ctrl-C is pressed, and the document is written. It
shows the screens at 100 columns. The README shows the one after a minute at 80 columns.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte

SIZES = ((100, 24), (80, 24))
MOMENTS_S = (60,)
README_MOMENT_S, README_COLUMNS = 60, 80
_SETTLE_S = 0.8
_END_S = 40.0
_END_ROWS = 250
_NORMAL_SCREEN = b"\x1b[?1049l"
_MARKS = re.compile(r"(<!-- recording[^\n]*-->\n).*?(<!-- /recording -->)", re.DOTALL)


class Terminal:
    """An in-memory terminal with one program on it."""

    def __init__(self, argv: list[str]) -> None:
        self._screen = pyte.Screen(*SIZES[0])
        self._stream = pyte.ByteStream(self._screen)
        self._ours, theirs = pty.openpty()
        self._resize(*SIZES[0])
        self.process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.over = False

    def wait(self, seconds: float) -> None:
        """Read output for `seconds`, or until the program ends."""
        until = time.monotonic() + seconds
        while not self.over and (left := until - time.monotonic()) > 0.0:
            if not select.select([self._ours], [], [], left)[0]:
                return
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # The program closed its end.
                data = b""
            self.over = not data
            _, leaves, after = data.rpartition(_NORMAL_SCREEN)
            if leaves:  # The program leaves the alternate screen, whose text disappears.
                self._screen.reset()
            self._stream.feed(after if leaves else data)

    def pictures(self) -> dict[int, str]:
        """Return the text of the screen at every size, by columns."""
        found = {}
        for columns, rows in SIZES:
            self._resize(columns, rows)
            self.wait(_SETTLE_S)
            found[columns] = self.text()
        self._resize(*SIZES[0])
        return found

    def text(self) -> str:
        """Return the text of the screen, without empty lines at the end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def grow(self, rows: int) -> None:
        """Add rows for the output at the end. The program is not notified."""
        self._screen.resize(rows, SIZES[0][0])

    def press_ctrl_c(self) -> None:
        """Press Ctrl-C on the terminal."""
        os.write(self._ours, b"\x03")

    def _resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen.resize(rows, columns)


def record(argv: list[str], seconds: float) -> list[tuple[str, dict[int, str]]]:
    """Run `argv`. Returns (moment, screens by columns) for several moments and for the end of the
    run.
    """
    terminal = Terminal(argv)
    began = time.monotonic()
    found = []
    for moment in (m for m in MOMENTS_S if m < seconds):
        terminal.wait(began + moment - time.monotonic())
        found.append((f"After {moment} s", terminal.pictures()))
    terminal.wait(began + seconds - time.monotonic())
    terminal.press_ctrl_c()
    terminal.wait(_SETTLE_S)
    terminal.grow(_END_ROWS)
    terminal.wait(_END_S)
    found.append(("The end", {SIZES[0][0]: terminal.text()}))
    terminal.process.wait(_END_S)
    return found


def document(found: list[tuple[str, dict[int, str]]]) -> str:
    """Format the recording as Markdown."""
    parts = [
        "# The first three minutes",
        "",
        "What `make run` shows after the installation, recorded by `make recording`. "
        "Times are real seconds; the clock of the screen runs ten times as fast. A narrower "
        "terminal shows fewer columns. "
        f"At the end the machine had a load of {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; "
        "on quiet cores more requests meet their SLO.",
    ]
    for moment, pictures in found:
        parts += ["", f"## {moment}", "", "```", _without_events(pictures[SIZES[0][0]]), "```"]
    return "\n".join(parts) + "\n"


def _without_events(text: str) -> str:
    """The text without the list of all events, which is long."""
    before, events, after = text.partition("\nEvents, each with the decisions that followed\n")
    if not events:
        return text
    _, _, rest = after.partition("\nDecisions\n")
    return f"{before}{events}  (left out here)\n\nDecisions\n{rest}"


def main() -> int:
    """Return exit code 0, or 1 if the program did not run to its end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=180.0, help="until Ctrl-C (180)")
    parser.add_argument("--out", type=Path, default=Path("docs/results/recording.md"))
    parser.add_argument("--readme", type=Path, help="put the first minute between its marks")
    parser.add_argument("command", nargs="*", default=["make", "--no-print-directory", "run"])
    options = parser.parse_args()
    found = record(options.command, options.seconds)
    if "Measurement" not in found[-1][1][SIZES[0][0]]:
        sys.stderr.write(f"the run did not end well:\n{found[-1][1][SIZES[0][0]]}\n")
        return 1
    options.out.write_text(document(found))
    first = dict(found).get(f"After {README_MOMENT_S} s")
    if options.readme and first:
        text = options.readme.read_text()
        fresh = _MARKS.sub(
            lambda marks: f"{marks[1]}```\n{first[README_COLUMNS]}\n```\n{marks[2]}", text
        )
        options.readme.write_text(fresh)
    print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
