"""Engines in containers: starts and removes them by the command lines of docker and podman. The
runtime's client stays in the foreground as the engine's leading process: it forwards SIGTERM and
exits with the container. SIGKILL reaches only the client, so a container is removed by name, and
its GPUs count as free only after the runtime confirms the removal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from executors.engines.engine_protocol import LaunchLine

RUNTIMES = ("docker", "podman")
CONTAINER_VARIABLE = "SHOAL_CONTAINER"
"""Variable in an engine's environment that names its runtime and container: "docker shoal-1f0c"."""

_REMOVAL_TIMEOUT_S, _REMOVAL_RETRY_S = 60.0, 5.0
_HOST_ONLY = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV",
        "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "CUDA_HOME", "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    }
)  # fmt: skip


def container_line(
    line: LaunchLine,
    runtime: str,
    image: str,
    launch: str,
    gpus: Collection[int],
    weights: Iterable[str],
    variables: Collection[str],
) -> LaunchLine:
    """The launch line that runs `line` inside `image`.

    launch: the launch's id, which names the container. gpus: indices on the node; the engine sees
    these GPUs as 0, 1, ... weights: absolute paths are mounted read-only. variables: names of the
    environment variables to pass in; the runtime reads their values, so no value appears in an
    argument.
    """
    name = f"shoal-{launch}"
    options = [f"--name={name}", "--rm", "--init", "--network=host", "--ipc=host"]
    if runtime == "podman":
        options += [f"--device=nvidia.com/gpu={gpu}" for gpu in gpus]
    else:
        options.append(f'--gpus="device={",".join(map(str, gpus))}"')
    options += [f"--volume={one}:{one}:ro" for one in weights if Path(one).is_absolute()]
    names = sorted({*variables, CONTAINER_VARIABLE} - _HOST_ONLY)
    options += [f"--env={variable}" for variable in names]
    options.append(f"--env=CUDA_VISIBLE_DEVICES={','.join(str(n) for n in range(len(gpus)))}")
    program, *words = line.argv
    argv = (runtime, "run", *options, f"--entrypoint={program}", image, *words)
    return LaunchLine(argv, (*line.env, (CONTAINER_VARIABLE, f"{runtime} {name}")))


@dataclass(slots=True)
class Container:
    """The container of one engine."""

    runtime: str
    name: str
    _removal: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _removal_started_s: float = 0.0

    @classmethod
    def from_variable(cls, variable: str) -> Container | None:
        """The container that `CONTAINER_VARIABLE` names; None if it is empty or malformed."""
        runtime, _, name = variable.partition(" ")
        return cls(runtime, name) if runtime in RUNTIMES and name else None

    def remove(self) -> bool:
        """Kill and remove the container; returns whether the container is gone. It does not wait,
        so call it periodically."""
        now_s = time.monotonic()
        if self._removal is None:
            if self._removal_started_s and now_s - self._removal_started_s < _REMOVAL_RETRY_S:
                return False
            self._removal_started_s = now_s
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
            if now_s - self._removal_started_s > _REMOVAL_TIMEOUT_S:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._removal.pid, signal.SIGKILL)
            return False
        removal, self._removal = self._removal, None
        assert removal.stderr is not None  # noqa: S101  opened with a pipe
        with removal.stderr as stream:
            output = stream.read(4000).decode(errors="replace").lower()
        return code == 0 or "no such container" in output or "no container with" in output
