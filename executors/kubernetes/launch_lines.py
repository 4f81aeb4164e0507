"""The command line of an engine in a pod. Pure."""

from __future__ import annotations

from dataclasses import replace

from executors.engines.engine_protocol import EngineKind, LaunchLine, LaunchSpec, rendezvous
from executors.kubernetes.pod_template import POD_IP, PodLaunch
from executors.node.engine_processes import SHUTDOWN_TIMEOUT_S
from executors.node.executor_config import ExecutorConfig, NodeConfig

_HOST = "pod-ip.invalid"  # placeholder for the pod's address until the pod exists


def launch_line(
    launch: PodLaunch, kind: EngineKind, node: NodeConfig, config: ExecutorConfig, engine_key: str
) -> LaunchLine:
    """The engine's command line, with POD_IP as a placeholder for the pod's address.

    engine_key: the API key of the engines.
    """
    desired, gang = launch.desired, launch.desired.gang
    model = config.models[desired.model]
    if gang is not None and gang.leads:
        gang = replace(gang, rendezvous=rendezvous(_HOST, launch.ports))
    line = kind.launch_line(
        LaunchSpec(
            model=desired.model,
            source=model.source,
            weights=model.weights,
            max_len=model.max_len,
            phase=desired.phase,
            gpu=node.gpu,
            gpus=desired.gpus,
            host=_HOST,
            advertise=_HOST,
            ports=launch.ports,
            time_base=config.time_base,
            launched_ms=launch.launched_ms,
            shutdown_timeout_s=SHUTDOWN_TIMEOUT_S,
            kv_gb_s=node.kv_gb_s,
            api_key=engine_key,
            gang=gang,
            adapters=model.adapters,
        )
    )
    argv = tuple(word.replace(_HOST, POD_IP) for word in line.argv)
    return LaunchLine(argv, tuple((k, v.replace(_HOST, POD_IP)) for k, v in line.env))
