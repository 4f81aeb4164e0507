"""`python -m executors.kubernetes --config FILE.json`: the executor of pools on Kubernetes.

The composition root: configuration, the API client, Kafka, one worker per slot. The state is in the
API server: a restarted executor lists the pods and continues. Pods outlive the executor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import socket
import sys
import time
import uuid
from importlib.metadata import version
from pathlib import Path

import aiohttp

from executors.kafka_client import KafkaClient
from executors.kubernetes.kube_client import KubeApi, KubeClient
from executors.kubernetes.kube_errors import KubeError
from executors.kubernetes.kubernetes_config import KubernetesConfig, load_kubernetes_config
from executors.kubernetes.lease import Lease
from executors.kubernetes.slot_workers import SlotWorkers
from executors.kubernetes.standby_api import StandbyApi
from executors.node import executor_metrics as metrics_server
from executors.node.engine_probes import ProbeTimeouts
from executors.node.executor import Executor
from executors.node.executor_metrics import Metrics
from executors.node.load_publisher import LoadPublisher
from topics.checks import InvalidValue
from topics.edge.key_files import read_keys
from topics.edge.logs import add_log_options, log_to_stderr
from topics.edge.supervision import end_event
from topics.fleet import Status
from topics.keys import Keys
from topics.topic_table import ASSIGNMENTS, STATUS

_LOG = logging.getLogger(__name__)


async def run(
    config: KubernetesConfig, keys: Keys, api: KubeApi, timeouts: ProbeTimeouts | None = None
) -> None:
    """Run until SIGTERM, or until the Lease is lost."""
    executor_config = config.executor
    end = end_event(asyncio.get_running_loop())
    metrics = Metrics()
    boot = f"{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"
    # A successor at the same place takes over the slots at once.
    lease = Lease(api, *config.lease) if config.lease[0] else None
    place = f"kubernetes:{api.namespace}:{config.lease[0] or socket.gethostname()}"
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5.0)
    timeout = aiohttp.ClientTimeout(total=None)  # each request has its own deadline
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as client,
        KafkaClient(
            executor_config.broker, executor_config.executor, executor_config.prefix, keys
        ) as kafka,
    ):

        async def publish(status: Status) -> bool:
            return await kafka.publish(STATUS.name, status.node, status)

        def workers(with_api: KubeApi) -> SlotWorkers:
            return SlotWorkers(config, keys, with_api, client, metrics, timeouts or ProbeTimeouts())

        slots = workers(api)
        loads = LoadPublisher(
            executor_config.engines,
            client,
            lambda item: item.endpoint,
            lambda: [item for worker in slots.workers.values() for item in worker.state.instances],
        )
        load_feed = loads.open(executor_config.bind, executor_config.advertise)

        async def run_slots(until: asyncio.Event, acts: bool) -> None:
            """Observe the pods of all slots, and report them. acts: also follow assignments."""
            slots.build(publish, boot, place, load_feed)
            executor = Executor(executor_config, kafka, slots.workers, metrics)
            notices = asyncio.create_task(slots.watch_notices())
            try:
                slots.start()
                # Nothing starts before the complete list of pods is known: adoption needs it.
                if not await slots.wait_synced(until):
                    return
                if acts:
                    await slots.align()
                    slots.show_models()
                executor.restore()
                if acts:
                    topics = (ASSIGNMENTS.name, STATUS.name)
                    kafka.follow(
                        topics, executor.on_record, executor.on_tombstone, only=slots.workers
                    )
                    kafka.follow_leadership(executor.on_leadership)
                await executor.run(until)
            finally:
                notices.cancel()
                await asyncio.gather(notices, return_exceptions=True)
                await executor.close(end_engines=False)
                await slots.close()

        try:
            server = await metrics_server.serve(
                metrics, executor_config.metrics_port, config.metrics_host
            )
        except OSError:
            port = executor_config.metrics_port
            raise InvalidValue("metrics_port", port, "a free port") from None
        tasks = [asyncio.create_task(loads.run())]
        try:
            if lease is not None:
                print(json.dumps({"standby": executor_config.executor}), flush=True)
                held = asyncio.Event()
                watching = None
                if config.standby_reports:
                    slots = workers(StandbyApi(api))
                    watching = asyncio.create_task(run_slots(held, acts=False))
                try:
                    if not await lease.acquire(end):
                        return
                finally:
                    held.set()
                    if watching is not None:
                        await watching
                slots = workers(api)
                tasks.append(asyncio.create_task(_until_lost(lease, end)))
            host, port = server.addresses[0][:2]
            ready = {
                "ready": True,
                "executor": executor_config.executor,
                "nodes": len(executor_config.nodes),
                "metrics": f"http://{host}:{port}/metrics",
            }
            print(json.dumps(ready), flush=True)
            await run_slots(end, acts=True)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            loads.close()
            await server.cleanup()
            if lease is not None:
                await lease.release()


async def _until_lost(lease: Lease, end: asyncio.Event) -> None:
    await lease.hold()
    _LOG.error("lease %s is lost: another executor acts now", lease.name)
    end.set()


async def _main(config: KubernetesConfig, keys: Keys) -> None:
    client = KubeClient(config.kubeconfig, config.namespace, config.context)
    client.open()
    try:
        await run(config, keys, client)
    finally:
        with contextlib.suppress(KubeError):
            await client.close()


def main(argv: list[str] | None = None) -> int:
    """Run the executor. Returns 0, or 2 for bad input or an unusable configuration."""
    parser = argparse.ArgumentParser(prog="python -m executors.kubernetes", description=__doc__)
    parser.add_argument("--version", action="version", version=f"shoal {version('shoal')}")
    parser.add_argument("--config", required=True, type=Path, help="JSON file")
    add_log_options(parser)
    arguments = parser.parse_args(argv)
    log_to_stderr(arguments.log_level, arguments.log_format)
    try:
        config, keys = load_kubernetes_config(arguments.config), read_keys()
        if keys.engine and not config.key_secret[0]:
            allowed = "SECRET/KEY, because pods read the engine key from a Secret"
            raise InvalidValue("--engine-key-secret", "", allowed)
        asyncio.run(_main(config, keys))
    except (InvalidValue, KubeError) as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
