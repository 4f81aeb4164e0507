"""A provision command whose nodes are processes on this machine: for trials, and to copy from.

    provision: python deploy/examples/local_nodes.py --folder ./nodes -- shoal executor
               --config shoal.yaml --broker 127.0.0.1:9092 --node {node} --engine simulated

Reads one question as JSON on standard input and prints one answer (docs/how-to/provisioning.md).
Every action may be repeated. A file NODE.notice in the folder with a number of seconds is a reclaim
notice, which `shoal executor --reclaim-command` asks for with the same command line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_MANNERS_S = 5.0


def create(folder: Path, node: str, command: list[str]) -> dict[str, object]:
    if node in nodes(folder):
        return {}
    with (folder / f"{node}.log").open("ab") as log:
        process = subprocess.Popen(
            [word.replace("{node}", node) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "LOCAL_NODE": node},
        )
    (folder / f"{node}.pid").write_text(str(process.pid))
    return {}


def delete(folder: Path, node: str) -> dict[str, object]:
    """End every process of the node, as if its machine were switched off."""
    pid = _pid(folder, node)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        until_s = time.monotonic() + _MANNERS_S
        while _alive(pid) and time.monotonic() < until_s:
            time.sleep(0.05)
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if {f"LOCAL_NODE={node}".encode(), f"SHOAL_NODE={node}".encode()} & {*variables}:
                os.kill(int(entry.name), signal.SIGKILL)
    (folder / f"{node}.pid").unlink(missing_ok=True)
    return {}


def nodes(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.pid") if _alive(_pid(folder, path.stem)))


def notice(folder: Path, node: str) -> dict[str, object]:
    try:
        return {"seconds_left": float((folder / f"{node}.notice").read_text())}
    except (OSError, ValueError):
        return {}


def _pid(folder: Path, node: str) -> int:
    try:
        return int((folder / f"{node}.pid").read_text())
    except (OSError, ValueError):
        return 0


def _alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="what it remembers")
    parser.add_argument("command", nargs="+", help="what a node runs; {node} is its name")
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    question = json.load(sys.stdin)
    action, node = question["action"], question.get("node", "")
    if action == "create":
        answer = create(folder, node, arguments.command)
    elif action == "delete":
        answer = delete(folder, node)
    elif action == "list":
        answer = {"nodes": nodes(folder)}
    elif action == "notice":
        answer = notice(folder, node)
    else:
        answer = {"error": f"unknown action {action}"}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
