"""Create the virtual environment and show the progress: step, size and time.

    python3 deploy/environment.py VENV [--dev]

Standard library only, because it runs before any installation. Every step may be interrupted
(Ctrl-C, code 130); the next call continues it. VENV/install.log keeps the output of pip.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SIZE = re.compile(r"\s+(?:Downloading|Using cached) .*\((\d+(?:\.\d+)?) (kB|MB|GB)\)")
_MB = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
_REDRAW_S, _LINE_S = 0.2, 10.0


class Progress:
    """One line of progress. It is redrawn on a terminal; otherwise it is
    printed from time to time.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._over = threading.Event()
        self._terminal = sys.stderr.isatty()
        self.detail = ""
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._write(end="\n")

    def _tell(self) -> None:
        self._write()
        while not self._over.wait(_REDRAW_S if self._terminal else _LINE_S):
            self._write()

    def _write(self, end: str = "") -> None:
        seconds = time.monotonic() - self._began
        text = f"{self._what}{': ' if self.detail else ''}{self.detail}, {seconds:.0f} s"
        start = "\r\033[K" if self._terminal else ""
        sys.stderr.write(start + text + (end if self._terminal else "\n"))
        sys.stderr.flush()


class PipProgress:
    """Counts packages and megabytes from the output of pip."""

    def __init__(self, packages: int) -> None:
        self._packages = packages
        self._seen = 0
        self._mb = 0.0

    def read(self, line: str) -> str:
        """The progress after this output line of pip."""
        if line.startswith("Collecting "):
            self._seen += 1
        elif found := _SIZE.match(line):
            self._mb += float(found[1]) * _MB[found[2]]
        elif line.startswith("Installing collected"):
            return f"unpacking {self._packages} packages, {self._mb:.0f} MB downloaded"
        return f"{min(self._seen, self._packages)} of {self._packages} packages, {self._mb:.0f} MB"

    def summary(self) -> str:
        """The final progress. Packages for other platforms were skipped."""
        return f"{self._seen} packages, {self._mb:.0f} MB downloaded"


def pinned(*locks: Path) -> int:
    """Number of packages that these lock files name."""
    lines = [line for lock in locks for line in lock.read_text().splitlines()]
    return len({line.split("==")[0] for line in lines if re.match(r"[A-Za-z0-9]\S*==", line)})


def run(argv: Sequence[str], log: Path, on_line: Callable[[str], None] = lambda _: None) -> None:
    """Run a command to its end. If it fails, raise SystemExit with the end of its output.

    The command has its own session, so Ctrl-C reaches only this process, which ends the command
    silently.
    """
    lines: list[str] = []
    with (
        log.open("a") as kept,
        subprocess.Popen(
            argv,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                kept.write(line)
                lines = [*lines[-14:], line]
                on_line(line)
            code = process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if code:
        said = "".join(lines)
        raise SystemExit(f"\n{said}failed with code {code}: {' '.join(argv[:4])} (log: {log})")


def make(venv: Path, dev: bool) -> None:
    """Run every step that is not yet done."""
    python = venv / "bin" / "python"
    log = venv / "install.log"
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-color"]
    pip += ["--progress-bar", "off", "--no-deps"]
    locks = [ROOT / name for name in ("requirements-build.lock", "requirements.lock")]
    if dev:
        locks = [ROOT / "requirements-dev.lock"]
    else:
        venv.mkdir(exist_ok=True)
        with Progress(f"making {venv} (once; about 460 MB)"):
            run([sys.executable, "-m", "venv", str(venv)], log)
    count = PipProgress(pinned(*locks))
    with Progress("installing") as progress:
        wanted = [part for lock in locks for part in ("-r", str(lock))]

        def show_line(line: str) -> None:
            progress.detail = count.read(line)

        run([*pip, "--require-hashes", *wanted], log, show_line)
        progress.detail = count.summary()
    if dev:
        return
    with Progress("installing shoal itself"):
        run([*pip, "--no-build-isolation", "--editable", "."], log)
    with Progress("compiling kernels (once): processes load them from disk"):
        demo = ["--config", "streams/data/demo.yaml", "--no-explain", "--json"]
        run([str(venv / "bin" / "shoal"), "plan", *demo], log)


def main() -> int:
    """Exit code: 0, 1 when a step failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("venv", type=Path, help="folder of the environment")
    parser.add_argument("--dev", action="store_true", help="what tests and checks need, on top")
    options = parser.parse_args()
    try:
        # `make` blocks the signal until Python can handle it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        make(options.venv, options.dev)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the next call goes on from here\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
