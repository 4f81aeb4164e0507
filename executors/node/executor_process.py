"""`python -m executors.node --config NODE.json`: the executor of one node, or of several virtual
nodes.

The composition root: configuration, the state folder, Kafka, one worker per node. Without a broker
the executor continues with its last assignment. After a kill and restart it adopts its engines.
When it stops, it stops its engines only if it has a supervisor; otherwise the engines continue to
serve, and the next executor adopts them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import uuid
from importlib.metadata import version
from pathlib import Path

import aiohttp

from executors.kafka_client import KafkaClient
from executors.node import executor_metrics as metrics_server
from executors.node.engine_ports import EnginePorts
from executors.node.engine_probes import ProbeTimeouts
from executors.node.engine_processes import EngineProcesses, reach_process
from executors.node.executor import Executor
from executors.node.executor_config import ExecutorConfig, load_config
from executors.node.executor_metrics import Metrics
from executors.node.load_publisher import LoadPublisher
from executors.node.node_lock import NodeLock
from executors.node.node_worker import NodeWorker, rules_for
from executors.node.probe_schedule import ProbeSchedule
from executors.node.state_store import StateFolderUnusable, StateStore
from topics.checks import InvalidValue
from topics.edge.key_files import read_keys
from topics.edge.logs import add_log_options, log_to_stderr
from topics.edge.supervision import end_event, supervision_fds
from topics.edge.tracing import open_spans
from topics.fleet import Status
from topics.keys import Keys
from topics.topic_table import ASSIGNMENTS, STATUS


async def run(
    config: ExecutorConfig, keys: Keys, store: StateStore, timeouts: ProbeTimeouts | None = None
) -> None:
    """Run until SIGTERM or until the supervisor exits."""
    end = end_event(asyncio.get_running_loop())
    spans = open_spans("shoal-executor", config.executor)
    metrics, ports = Metrics(), EnginePorts(config.bind)
    boot = f"{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5.0)
    timeout = aiohttp.ClientTimeout(total=None)  # each request has its own deadline
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as client,
        KafkaClient(config.broker, config.executor, config.prefix, keys) as kafka,
    ):

        async def publish(status: Status) -> bool:
            return await kafka.publish(STATUS.name, status.node, status)

        rules = rules_for(config)
        workers: dict[str, NodeWorker] = {}
        processes: dict[str, EngineProcesses] = {}
        loads = LoadPublisher(
            config.engines,
            client,
            lambda item: f"{config.engine_host}:{item.ports[0]}",
            lambda: [item for worker in workers.values() for item in worker.state.instances],
        )
        load_feed = loads.open(config.bind, config.advertise)
        for node in config.nodes:
            schedule = ProbeSchedule(
                config.engines,
                client,
                reach_process(config.engine_host),
                timeouts or ProbeTimeouts(),
            )
            engines = EngineProcesses(node, config, ports, store, schedule, metrics, keys.engine)
            processes[node.node] = engines
            node_lock = NodeLock(node.node, boot, store.place, config.time_base.speed)
            workers[node.node] = NodeWorker(
                node, config, engines, node_lock, metrics, publish, rules, load_feed, spans
            )

        def set_launch_fault(node: str, fault: str) -> None:
            processes[node].launch_fault = fault

        executor = Executor(config, kafka, workers, metrics, set_launch_fault)
        executor.restore()
        topics = (ASSIGNMENTS.name, STATUS.name)
        kafka.follow(topics, executor.on_record, executor.on_tombstone, only=workers)
        kafka.follow_leadership(executor.on_leadership)
        try:
            server = await metrics_server.serve(metrics, config.metrics_port)
        except OSError:
            loads.close()  # its sockets would block their collection
            raise InvalidValue("metrics_port", config.metrics_port, "a free port") from None
        host, port = server.addresses[0][:2]
        ready = {
            "ready": True,
            "executor": config.executor,
            "nodes": len(config.nodes),
            "metrics": f"http://{host}:{port}/metrics",
        }
        print(json.dumps(ready), flush=True)
        publishing = asyncio.create_task(loads.run())
        try:
            await executor.run(end)
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            loads.close()
            await server.cleanup()
            ports.close()
            # After a fault of the executor, the engines keep running, and the next executor adopts
            # them.
            await executor.close(end_engines=end.is_set() and bool(supervision_fds()))


def main(argv: list[str] | None = None) -> int:
    """Run the executor. Returns 0, or 2 for bad input or an unusable state folder."""
    parser = argparse.ArgumentParser(prog="python -m executors.node", description=__doc__)
    parser.add_argument("--version", action="version", version=f"shoal {version('shoal')}")
    parser.add_argument("--config", required=True, type=Path, help="JSON file")
    add_log_options(parser)
    arguments = parser.parse_args(argv)
    log_to_stderr(arguments.log_level, arguments.log_format)
    try:
        config, keys = load_config(arguments.config), read_keys()
        store = StateStore(config.state_dir)
        store.open()
    except (InvalidValue, StateFolderUnusable) as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(run(config, keys, store))
    except InvalidValue as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2
    finally:
        store.close()
    return 0
