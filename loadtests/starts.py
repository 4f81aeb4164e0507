"""Starts of `shoal up` on a busy machine: `python -m loadtests.starts [--starts 20] [--load 20]`.

Loops that only compute raise the load average to `--load`. A start counts if the run then serves
requests, and ends as asked. Exits with 1 if a start fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loadtests.arguments import whole

_SERVES_S = 10
_UP = [sys.executable, "-m", "streams.cli.entry", "up", "--for", str(_SERVES_S), "--speed", "30"]
_GIVE_UP_S = 900.0


def start(folder: Path) -> tuple[int, str]:
    """Answered requests of one run, and the end of its output if it failed."""
    summary = folder / "summary.json"
    summary.unlink(missing_ok=True)
    argv = [*_UP, "--http", "127.0.0.1:0", "--summary", str(summary)]
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output)
        try:
            code: int | None = process.wait(_GIVE_UP_S)
        except subprocess.TimeoutExpired:
            code = None
            process.terminate()
            process.wait(60.0)
        output.seek(0)
        said = output.read()
    if code != 0 or not summary.exists():
        return 0, f"exit code {code}: {said[-1000:]}"
    found: dict[str, Any] = json.loads(summary.read_bytes())
    return int(found["requests"]["served"]), ""


def main() -> int:
    """Exit codes: 0 all runs started, 1 some did not, 2 bad arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--starts", type=whole(1), default=20)
    parser.add_argument("--load", type=whole(0), default=20, help="least load average (20)")
    options = parser.parse_args()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(options.load - round(os.getloadavg()[0]))]  # fmt: skip
    started = 0
    try:
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
