"""The closed environment of an engine, and the launch tag that identifies its processes later.

Engines inherit only the variables listed here. Secrets of the executor (Kafka passwords, signing
keys, proxies with passwords) reach an engine only if the operator names them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import orjson

from executors.engines.engine_protocol import LaunchLine
from executors.node import procfs
from topics.checks import InvalidValue
from topics.codec import read_value
from topics.edge.supervision import SUPERVISION_VARIABLE
from topics.fleet import DesiredInstance

_INHERITED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR",
        "PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
        "CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "DO_NOT_TRACK",
        "NUMBA_CACHE_DIR", "OMP_NUM_THREADS", SUPERVISION_VARIABLE,
    }
)  # fmt: skip
_STATE, _NODE, _LAUNCH = "SHOAL_STATE_DIR", "SHOAL_NODE", "SHOAL_LAUNCH"


@dataclass(frozen=True, slots=True)
class LaunchTag:
    """The identity of a launch, which all its processes have in their environment. launch: a unique
    id. ports: the ports on which the engine listens. launched_ms: domain time of the launch.
    """

    launch: str
    node: str
    desired: DesiredInstance
    ports: tuple[int, ...]
    launched_ms: int


def engine_environment(
    line: LaunchLine,
    tag: LaunchTag,
    state_dir: str,
    passed: Collection[str] = (),
    ours: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """All environment variables of one engine. passed: further names that the operator lets
    through."""
    kept = {
        name: value
        for name, value in ours.items()
        if name in _INHERITED or name.startswith("LC_") or name in passed
    }
    shown = {
        "launch": tag.launch, "desired": tag.desired, "ports": tag.ports, "at": tag.launched_ms,
    }  # fmt: skip
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": _visible_devices(
            tag.desired.gpus, ours.get("CUDA_VISIBLE_DEVICES", "")
        ),
        # Engines rename their processes; this variable prevents the new name from overwriting the
        # variables below.
        "SPT_NOENV": "1",
        **dict(line.env),
        _STATE: state_dir,
        _NODE: tag.node,
        _LAUNCH: orjson.dumps(shown).decode(),
    }


def read_tag(pid: int, state_dir: str) -> LaunchTag | str | None:
    """The launch tag of a process that an executor with this state folder started.

    Returns only the node's name if the rest is unreadable, and None for any other process.
    """
    variables = procfs.environment(pid)
    if variables.get(_STATE) != state_dir or not variables.get(_NODE):
        return None
    node = variables[_NODE]
    try:
        raw = orjson.loads(variables[_LAUNCH])
        desired = read_value(DesiredInstance, raw["desired"])
        ports = tuple(int(port) for port in raw["ports"])
        return LaunchTag(str(raw["launch"]), node, desired, ports, int(raw["at"]))
    except (KeyError, TypeError, ValueError, InvalidValue):
        return node


def _visible_devices(gpus: tuple[int, ...], ours: str) -> str:
    """CUDA device names for the node's GPU indices `gpus`. ours: the CUDA_VISIBLE_DEVICES of this
    process, because a container may see only GPUs 4-7, for example."""
    names = [name.strip() for name in ours.split(",") if name.strip()]
    return ",".join(names[gpu] if gpu < len(names) else str(gpu) for gpu in gpus)
