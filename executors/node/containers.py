"""Engines in containers: the launch line around an engine's own, and the end of a container.

Owns the command lines of docker and podman. The runtime's client stays in the foreground as the
engine's leading process: it passes SIGTERM on and ends with the container. SIGKILL reaches only the
client, so a container is removed by name, and its GPUs are free only when the runtime says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from executors.engines.engine_protocol import LaunchLine

RUNTIMES = ("docker", "podman")
VARIABLE = "SHOAL_CONTAINER"
"""What names an engine's runtime and container in its environment: "docker shoal-1f0c"."""

_LIMIT_S, _AGAIN_S = 60.0, 5.0
_HOSTS_OWN = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV",
        "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "CUDA_HOME", "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    }
)  # fmt: skip


def contained(
    line: LaunchLine,
    runtime: str,
    image: str,
    launch: str,
    gpus: Collection[int],
    weights: str,
    variables: Collection[str],
) -> LaunchLine:
    """`line` inside `image`. launch: names the container. gpus: indices on the node, which the
    engine sees as 0, 1, ... weights: a folder of the host is mounted, read-only. variables: names
    of those that go in; their values are read by the runtime and stand in no argument.
    """
    name = f"shoal-{launch}"
    options = [f"--name={name}", "--rm", "--init", "--network=host", "--ipc=host"]
    if runtime == "podman":
        options += [f"--device=nvidia.com/gpu={gpu}" for gpu in gpus]
    else:
        options.append(f'--gpus="device={",".join(map(str, gpus))}"')
    if Path(weights).is_absolute():
        options.append(f"--volume={weights}:{weights}:ro")
    names = sorted({*variables, VARIABLE} - _HOSTS_OWN)
    options += [f"--env={variable}" for variable in names]
    options.append(f"--env=CUDA_VISIBLE_DEVICES={','.join(str(n) for n in range(len(gpus)))}")
    program, *words = line.argv
    argv = (runtime, "run", *options, f"--entrypoint={program}", image, *words)
    return LaunchLine(argv, (*line.env, (VARIABLE, f"{runtime} {name}")))


@dataclass(slots=True)
class Container:
    """One engine's container, as it is removed."""

    runtime: str
    name: str
    _removal: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _asked_s: float = 0.0

    @classmethod
    def named(cls, variable: str) -> Container | None:
        """The container that an engine's environment names; None for engines without one."""
        runtime, _, name = variable.partition(" ")
        return cls(runtime, name) if runtime in RUNTIMES and name else None

    def remove(self) -> bool:
        """Kill and remove it, and whether that is done. Never waits: call it again."""
        now_s = time.monotonic()
        if self._removal is None:
            if self._asked_s and now_s - self._asked_s < _AGAIN_S:
                return False
            self._asked_s = now_s
            with contextlib.suppress(OSError):
                self._removal = subprocess.Popen(
                    (self.runtime, "rm", "--force", self.name),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            return False
        code = self._removal.poll()
        if code is None:
            if now_s - self._asked_s > _LIMIT_S:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._removal.pid, signal.SIGKILL)
            return False
        removal, self._removal = self._removal, None
        assert removal.stderr is not None  # noqa: S101  a pipe was asked for
        with removal.stderr as stream:
            said = stream.read(4000).decode(errors="replace").lower()
        return code == 0 or "no such container" in said or "no container with" in said
