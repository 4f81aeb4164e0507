"""`python tree_executor.py NODE.json ROLE_SWITCH`: an executor whose only engine is `tree_engine`.

Its time-outs are short, so that tests of hung engines do not take minutes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from executors.engines.engine_protocol import LaunchLine, LaunchSpec, RoleSwitch
from executors.engines.http_api import HttpApi
from executors.node.engine_probes import ProbeTimeouts
from executors.node.executor_config import load_config
from executors.node.executor_process import run
from executors.node.state_store import StateFolderUnusable, StateStore
from topics.edge.key_files import read_keys

ENGINE = str(Path(__file__).with_name("tree_engine.py"))


@dataclass(frozen=True, slots=True)
class TreeKind(HttpApi):
    """An engine kind in which phase "decode" never starts if `broken` is set."""

    role_switch: RoleSwitch
    broken: bool
    ports: int = 1
    stop_s: float = 1.0
    image: str = ""
    sleeps: bool = False

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        if self.broken and spec.phase == "decode":
            return LaunchLine((sys.executable, "-S", "-c", "raise SystemExit('no decode here')"))
        return LaunchLine((sys.executable, "-S", ENGINE, str(spec.port), "0.2"))

    def startup_s(self, spec: LaunchSpec) -> float:
        return 1.0


def main() -> int:
    logging.basicConfig(level=logging.INFO)
    switch, _, broken = sys.argv[2].partition("-")
    kind = TreeKind(RoleSwitch(switch), bool(broken))
    config = replace(load_config(Path(sys.argv[1])), engines={"default": kind})
    store = StateStore(config.state_dir)
    try:
        store.open()
    except StateFolderUnusable as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2
    asyncio.run(
        run(config, read_keys(), store, ProbeTimeouts(no_progress_s=0.3, token_timeout_s=0.3))
    )
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
