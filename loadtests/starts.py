"""Starts of `shoal up` on a busy machine: `python -m loadtests.starts [--starts 20] [--load 20]`.

As many loops as `--load` only compute. A start counts if the run serves every
model, answers requests, and ends at Ctrl-C. Exits with 1 if a start fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loadtests.arguments import whole

_UP = [sys.executable, "-m", "streams.cli.entry", "up", "--speed", "30", "--http", "127.0.0.1:0"]
_SERVED = "API http://"
"""In the line that `shoal up` prints once every model is served."""
_SERVES_S = 10.0
_GIVE_UP_S = 900.0
_END_S = 120.0
_LOOK_S = 0.2
_REACHED = 0.9
"""Share of the load at which the starts begin, because the average approaches it slowly."""
_ENDS = (0, 128 + signal.SIGINT)  # a short trace may end before Ctrl-C


def start(folder: Path) -> tuple[int, str]:
    """Answered requests of one run, and the end of its output if it failed."""
    summary, output = folder / "summary.json", folder / "output"
    summary.unlink(missing_ok=True)
    with output.open("w") as file:
        process = subprocess.Popen([*_UP, "--summary", str(summary)], stdout=file, stderr=file)
    until_s = time.monotonic() + _GIVE_UP_S
    while _SERVED not in output.read_text() and process.poll() is None:
        if time.monotonic() > until_s:
            break
        time.sleep(_LOOK_S)
    else:
        time.sleep(_SERVES_S)
    process.send_signal(signal.SIGINT)
    try:
        code: int | None = process.wait(_END_S)
    except subprocess.TimeoutExpired:
        code = None
        process.kill()
        process.wait()
    if code not in _ENDS or not summary.exists():
        return 0, f"exit code {code}: {output.read_text()[-1000:]}"
    found: dict[str, Any] = json.loads(summary.read_bytes())
    return int(found["requests"]["served"]), ""


def main() -> int:
    """Exit codes: 0 all runs started, 1 some did not, 2 bad arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--starts", type=whole(1), default=20)
    parser.add_argument("--load", type=whole(0), default=20, help="loops that compute (20)")
    options = parser.parse_args()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(options.load)]  # fmt: skip
    started = 0
    try:
        while os.getloadavg()[0] < _REACHED * options.load:
            time.sleep(_LOOK_S)
        with tempfile.TemporaryDirectory(prefix="shoal-starts-") as made:
            for number in range(1, options.starts + 1):
                began_s, load = time.monotonic(), os.getloadavg()[0]
                served, why = start(Path(made))
                started += served > 0
                took_s = time.monotonic() - began_s
                print(f"{number}: load {load:.0f}, {took_s:.0f} s, {served} requests {why}",
                      flush=True)  # fmt: skip
    finally:
        for process in busy:
            process.kill()
    print(f"{started} of {options.starts} runs started")
    return int(started < options.starts)


if __name__ == "__main__":
    sys.exit(main())
