"""`python -m executors.node --config NODE.json`: the executor of a region's nodes.

The composition root: configuration, the kafka to Kafka, one worker per node. With the broker away
it goes on with what it last knew; killed and started again it takes its engines over. Supervised
it ends its engines with itself; without one they serve on, and the next executor adopts them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from executors.kafka_client import KafkaClient
from executors.logs import add_log_level, log_to_stderr
from executors.node.config import ExecutorConfig, load_config
from executors.node.processes import Ports
from executors.node.store import Store
from executors.node.worker import NodeWorker, rules_at
from executors.supervision import end_event, supervision_fds
from topics.checks import InvalidRecord
from topics.fleet import Assignment, Status
from topics.table import ASSIGNMENTS, STATUS

log = logging.getLogger(__name__)

_STEP_S = 0.1
_MANNERS_S, _END_S = 1.0, 2.0


class Executor:
    """All nodes of one process."""

    def __init__(
        self, config: ExecutorConfig, kafka: KafkaClient, client: aiohttp.ClientSession
    ) -> None:
        self._config = config
        self._link = kafka
        self._ports = Ports(config.bind)
        self._latest: dict[str, Assignment] = {}
        store = Store(config.state_dir)
        rules = rules_at(config.time_base.speed)
        self.workers = {
            node.node: NodeWorker(node, config, self._ports, store, client, self._publish, rules)
            for node in config.nodes
        }

    def on_record(self, _topic: str, _key: str, record: Any) -> None:
        """An assignment from Kafka; those of other executors' nodes are none of our business."""
        if isinstance(record, Assignment) and record.node in self.workers:
            if self._link.caught_up and record.node not in self._latest:
                self.workers[record.node].accept(record)
                return
            # While old records pass by, only the newest counts.
            known = self._latest.get(record.node)
            order = (record.leader_token, record.generation)
            if known is None or order >= (known.leader_token, known.generation):
                self._latest[record.node] = record

    async def run(self, end: asyncio.Event) -> None:
        """Step every node until `end`."""
        loop = asyncio.get_running_loop()
        adopted = sum(worker.restore() for worker in self.workers.values())
        if adopted:
            log.info("took over %d running engines", adopted)
        while not end.is_set():
            if self._latest and self._link.caught_up:
                for node, assignment in self._latest.items():
                    self.workers[node].accept(assignment)
                self._latest.clear()
            now_ms = self._config.time_base.now_ms(time.monotonic_ns())
            used = set().union(*(worker.ports_used for worker in self.workers.values()))
            for worker in self.workers.values():
                worker.step(now_ms, loop.time(), used)
            try:
                await asyncio.wait_for(end.wait(), _STEP_S)
            except TimeoutError:
                continue

    async def close(self, end_engines: bool) -> None:
        """Stop; end_engines: take the engines along (terminate, wait, kill, reap)."""
        workers = list(self.workers.values())
        for worker in workers:
            await worker.close()
        self._ports.close()
        if not end_engines:
            return
        for worker in workers:
            worker.terminate_all()
        started = time.monotonic()
        killed = False
        while sum(worker.alive() for worker in workers):
            waited_s = time.monotonic() - started
            if waited_s > _END_S:
                log.error("engines are left that cannot be killed")
                return
            if waited_s > _MANNERS_S and not killed:
                killed = True
                for worker in workers:
                    worker.kill_all()
            await asyncio.sleep(0.02)

    async def _publish(self, status: Status) -> bool:
        return await self._link.publish(STATUS.name, status.node, status)


async def _run(config: ExecutorConfig) -> None:
    end = end_event(asyncio.get_running_loop())
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5.0)
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        KafkaClient(config.broker, config.executor, config.prefix) as kafka,
    ):
        executor = Executor(config, kafka, client)
        kafka.follow((ASSIGNMENTS.name,), executor.on_record)
        ready = {"ready": True, "executor": config.executor, "nodes": len(config.nodes)}
        print(json.dumps(ready), flush=True)
        try:
            await executor.run(end)
        finally:
            # A fault of ours must not take the engines along: our next life adopts them.
            await executor.close(end_engines=end.is_set() and bool(supervision_fds()))


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or until the supervisor is gone; exit code 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m executors.node", description=__doc__)
    parser.add_argument("--config", required=True, type=Path, help="JSON file")
    add_log_level(parser)
    arguments = parser.parse_args(argv)
    log_to_stderr(arguments.log_level)
    try:
        config = load_config(arguments.config)
    except InvalidRecord as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2
    asyncio.run(_run(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
