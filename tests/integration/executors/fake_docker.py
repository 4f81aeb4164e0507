"""A fake docker for executors that runs containers as processes. It supports only a foreground run
and rm.

A container leads its own session and gets only the variables that it was given. Calls and pids of
leaders are stored in FAKE_DOCKER.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "docker"
    script.write_text(f'#!/bin/sh\nFAKE_DOCKER={folder} exec {sys.executable} {__file__} "$@"\n')
    script.chmod(0o755)


def main(folder: Path, argv: list[str]) -> int:
    with (folder / "calls").open("a") as calls:
        calls.write(" ".join(argv) + "\n")
    if argv[0] == "rm":
        return _rm(folder / argv[-1])
    options = [word for word in argv[1:] if word.startswith("--")]
    given = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    image = argv.index("the/image:1")
    names = [o.removeprefix("--env=") for o in argv[:image] if o.startswith("--env=")]
    env = {"PATH": os.environ["PATH"]}
    for name in names:
        key, found, value = name.partition("=")
        if found or key in os.environ:
            env[key] = value if found else os.environ[key]
    words = [given["entrypoint"], *argv[image + 1 :]]
    child = subprocess.Popen(words, env=env, start_new_session=True, cwd=Path(__file__).parents[3])
    (folder / given["name"]).write_text(str(child.pid))
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    (folder / given["name"]).unlink(missing_ok=True)
    return code


def _rm(container: Path) -> int:
    try:
        pid = int(container.read_text())
    except OSError:
        print(f"Error: No such container: {container.name}", file=sys.stderr)
        return 1
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    container.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(os.environ["FAKE_DOCKER"]), sys.argv[1:]))
