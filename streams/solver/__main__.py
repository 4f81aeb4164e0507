"""`python -m streams.solver --config FILE`: answers questions on stdin with lines on stdout.

Owns the loop only. It may be killed at any moment; whoever asked starts another.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from autoscaler.domain.cluster import Cluster, Mode
from streams.files.config import load_config
from streams.solver.wire import answer, asked, failure
from streams.solver.work import solve
from streams.supervision import end_with_supervisor

_PR_SET_PDEATHSIG = 1


def main(argv: list[str] | None = None) -> int:
    """Answer until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m streams.solver", description=__doc__)
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--default-mode", default="recommend", choices=[str(m) for m in Mode])
    arguments = parser.parse_args(argv)
    end_with_supervisor()
    _end_with_parent()
    # Serving comes first on a shared machine: what is solved here can wait a little.
    os.nice(5)
    declared = load_config(arguments.config, Mode(arguments.default_mode)).cluster
    # Solvers print; answers get a descriptor that nobody else writes to.
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)
        for line in sys.stdin.buffer:
            number, question, prices = asked(line)
            try:
                out.write(answer(number, solve(question, priced(declared, prices))))
            except Exception as error:
                # Any failure is an answer: the last good plan stands, and the reason is logged.
                out.write(failure(number, f"{type(error).__name__}: {error}"))
    return 0


def _end_with_parent() -> None:
    """Nobody reads an answer once the controller is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def priced(cluster: Cluster, usd_per_node_h: dict[str, float]) -> Cluster:
    """`cluster` with these prices per pool id; pools that are not named keep theirs."""
    return replace(
        cluster,
        pools=tuple(
            replace(pool, price_usd_per_h=usd_per_node_h.get(pool.id, pool.price_usd_per_h))
            for pool in cluster.pools
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
