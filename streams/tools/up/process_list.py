"""The processes of a run on one machine, with their command lines and the executors' node files.

`streams.tools.up.child_processes` starts and watches them.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.domain.node_names import node_ids
from autoscaler.domain.workload import Demand
from autoscaler.planning.network import link_gb_s
from autoscaler.planning.time_limits import LEAST_DRAIN_S, request_limit_s
from streams.files.components_section import stage_engines
from streams.files.engines_section import EngineSpec
from streams.files.shoal_yaml import Config
from streams.gateway_models_option import declared_options, media_options
from streams.tools.replay.demand_changes import format_changes
from streams.tools.up.child_processes import Child
from streams.tools.up.real_engines import RealEngines
from streams.tools.up.run_options import Wishes
from streams.tools.up.scenario_file import demand_changes
from streams.tools.up.trace_facts import longest_of, weights
from topics.storage.durable_files import replace_file
from topics.storage.private_files import private_folder
from topics.time_base import TimeBase

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Run:
    """Values that all parts of one run share. folder: for logs, node files, state and reports.

    demands: workloads of models for which the file declares none. real: real engines, None =
    simulated. operated: options of the controller, for operators. windows: whether a window worker
    merges the gateways' telemetry. faults: file with the scenario's faults, None = no scenario.
    """

    config: Config
    config_path: Path
    folder: Path
    time_base: TimeBase
    gateway_port: int
    seed: int
    prefix: str
    demands: Mapping[str, Demand] = field(default_factory=dict)
    log_options: tuple[str, ...] = ()
    real: RealEngines | None = None
    operated: tuple[str, ...] = ()
    faults: Path | None = None
    windows: bool = False


def broker(run: Run) -> Child:
    """The process of the embedded broker."""
    return _child(run, "broker", "streams.broker", "--prefix", run.prefix, restart=False)


def controller(run: Run, bootstrap: str) -> Child:
    """The process of the controller."""
    options: list[str] = []
    if run.demands:
        path = run.folder / "workload.json"
        replace_file(
            path, orjson.dumps({model: _demand_facts(d) for model, d in run.demands.items()})
        )
        options = ["--workload", str(path)]
    return _child(
        run, "controller", "streams.controller",
        "--config", str(run.config_path), "--broker", bootstrap,
        "--time-base", run.time_base.format(), "--controller-id", "controller-1",
        "--prefix", run.prefix, "--default-mode", "act",
        "--default-capacity", "predicted", *run.log_options,
        *options, *run.operated,
    )  # fmt: skip


def windows(run: Run, bootstrap: str) -> Child:
    """A worker that merges the gateways' telemetry. It needs a real Kafka."""
    return _child(
        run, "windows", "streams.windows",
        "--broker", f"kafka://{bootstrap}", "--prefix", run.prefix,
        "--time-base", run.time_base.format(), *run.log_options,
    )  # fmt: skip


def executors(run: Run, bootstrap: str) -> list[Child]:
    """One executor per region, for all of the region's virtual nodes."""
    children = []
    for region in sorted({pool.region for pool in run.config.cluster.pools}):
        name = f"executor-{region}"
        path = run.folder / f"{name}.json"
        replace_file(path, orjson.dumps(node_file(run, region, name, bootstrap)))
        options = ("--config", str(path), *run.log_options)
        children.append(_child(run, name, "executors.node", *options))
    return children


def gateway(run: Run, bootstrap: str) -> Child:
    """The OpenAI-compatible server."""
    state = run.folder / "gateway-state"
    private_folder(state)
    return _child(
        run, "gateway", "executors.gateway",
        "--broker", bootstrap, "--host", HOST, "--port", str(run.gateway_port),
        "--gateway-id", "gateway-1", "--time-base", run.time_base.format(),
        "--drain-s", "0.5",  # short, because the engines end at the same time
        "--request-s", f"{request_limit_s(run.config.cluster):.0f}",
        "--state-dir", str(state), "--prefix", run.prefix, *run.log_options,
        *declared_options(run.config.cluster),
        *media_options(engine.args for engine in run.config.engines.values()),
    )  # fmt: skip


def replayer(
    run: Run, url: str, wishes: Wishes, start_ms: int, for_ms: int | None, report: Path
) -> Child:
    """The load generator. It sends the trace's requests at their recorded times, spread over the
    models.

    for_ms: the replayed part of the trace; None = all of it.
    """
    services = run.config.cluster.services
    shares = ",".join(f"{m}={share:g}" for m, share in weights(run.config.cluster).items())
    longest = [f"{m}={most}" for m, most in longest_of(run.config.cluster).items()]
    scores = [
        f"{route.name}={route.source.header}:{run.config.scores[route.name].resolve()}"
        for route in run.config.cluster.routes
        if route.source.header
    ]
    return _child(
        run, "replayer", "streams.tools.replay",
        "--url", url, "--trace", str(wishes.trace), "--columns", wishes.columns,
        "--time-base", run.time_base.format(),
        "--start-ms", str(start_ms), "--models", shares, "--seed", str(run.seed),
        *([] if for_ms is None else ["--for-ms", str(for_ms)]), "--report", str(report),
        "--max-len", ",".join(longest),
        "--kinds", ",".join(_kinds(s.model, s.graph) for s in services if s.graph is not None),
        "--scores", ",".join(scores),
        "--demand", format_changes(demand_changes(wishes.events)),
        restart=False,
    )  # fmt: skip


def _kinds(model: str, graph: ComponentGraph) -> str:
    """The kinds of requests that the replay sends to `model`, with their shares and media."""
    kinds = [f"{kind.share:.6f}:{'+'.join(sorted(kind.media))}" for kind in graph.types]
    return f"{model}={'/'.join(kinds)}"


def node_file(
    run: Run, region: str, name: str, bootstrap: str, nodes: Container[str] | None = None
) -> Mapping[str, object]:
    """An executor's nodes, models and engines as a file. nodes: None = all nodes of the region."""
    state = run.folder / f"{name}-state"
    return {
        "executor": name,
        "region": region,
        "broker": bootstrap,
        "prefix": run.prefix,
        "state_dir": str(state),
        "time_base": run.time_base.format(),
        "bind": HOST,
        "nodes": [
            {
                "node": node,
                "pool": pool.id,
                "gpu": pool.gpu.name,
                "gpus": pool.per_node,
                "kv_gb_s": link_gb_s(pool, pool),
                "provision_s": pool.provision_s,
            }
            for pool in run.config.cluster.pools
            if pool.region == region
            for node in node_ids(pool)
            if nodes is None or node in nodes
        ],
        "drain_timeout_s": run.config.cluster.policy.drain_timeout_s or LEAST_DRAIN_S,
        "start_timeout_s": longest_start_s(run.config.cluster),
        "faults_file": str(run.faults or ""),
        "models": {
            service.model: {
                "source": service.architecture.name,
                "max_len": service.max_len_tokens,
                "weights": str(run.real.weights) if run.real else service.weights,
                "adapters": [asdict(one) for one in service.adapters],
                "digest": service.launched_model,
            }
            for service in run.config.cluster.services
        },
        "engines": {
            engine.name: run.real.section(engine) if run.real else _simulated(engine, run.config)
            for engine in run.config.engines.values()
        }
        | stage_engines(run.config.cluster.services),
    }


def longest_start_s(cluster: Cluster) -> float:
    """The longest time limit for the start of an instance, in domain s."""
    machines = max((pool.provision_s for pool in cluster.pools), default=0.0)
    return cluster.policy.start_timeout_s + machines


def _simulated(engine: EngineSpec, config: Config) -> Mapping[str, object]:
    return {
        "kind": "simulated",
        "quantization": engine.quantization or None,
        "max_num_seqs": engine.max_num_seqs,
        "startup_s": None,
        "measurements": [asdict(one) for one in config.cluster.measurements],
        "image": engine.image,
        "args": list(engine.args),
        "sleep": engine.sleep,
    }


def _demand_facts(demand: Demand) -> dict[str, float]:
    lengths = demand.lengths
    return {
        "req_per_s": demand.req_per_s,
        "input_tokens": lengths.input_tokens,
        "output_tokens": lengths.output_tokens,
    }


def _child(run: Run, name: str, module: str, *options: str, restart: bool = True) -> Child:
    argv = [sys.executable, "-m", module, *options]
    return Child(name=name, argv=argv, log=run.folder / f"{name}.log", restart=restart)
