"""The provisioner command creates assigned nodes and deletes idle ones.

Its failures count as failed launches. The tests run real processes.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.performance import catalog
from streams.files.user_errors import UserError
from streams.ports.node_provider import HookFailed, Provisioner, ask
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status

POOL = Pool("us", "l4", catalog.gpu("L4"), 1, 3, Market.SPOT, 0.3)
NODE = "us.l4.spot.0"
HOOK = """
import json, pathlib, sys
folder, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
asked = json.load(sys.stdin)
with (folder / "asked").open("a") as log:
    log.write(json.dumps(asked) + "\\n")
action, there = asked["action"], folder / "there"
known = there.read_text().split() if there.exists() else []
if action == mode:
    print(json.dumps({"error": "no quota"}))
elif action == "list":
    print(json.dumps({"nodes": known}))
else:
    known = [n for n in known if n != asked["node"]] + [asked["node"]] * (action == "create")
    there.write_text(" ".join(known))
    print("{}")
"""


class Bench:
    def __init__(self, folder: Path, mode: str = "none") -> None:
        (folder / "hook.py").write_text(HOOK)
        self.folder = folder
        self.assignments: dict[str, Assignment] = {}
        self.statuses: dict[str, Status] = {}
        command = f"{sys.executable} -S {folder}/hook.py {folder} {mode}"
        self.provisioner = Provisioner(
            {POOL.id: command}, lambda: Cluster((POOL,), ()), self.assignments, self.statuses,
            lambda: True, lambda: 1_000_000,
        )  # fmt: skip

    def assign(self, *instances: str, generation: int = 1) -> None:
        wishes = tuple(
            DesiredInstance(name, "m", "aggregated", "g:1", (n,))
            for n, name in enumerate(instances)
        )
        self.assignments[NODE] = Assignment(NODE, POOL.id, generation, 1, 1_000_000, wishes)

    def runs(self, *instances: str, state: InstanceState = InstanceState.READY) -> None:
        seen = tuple(
            ObservedInstance(name, "m", "aggregated", "g:1", state, (n,))
            for n, name in enumerate(instances)
        )
        self.statuses[NODE] = Status(NODE, POOL.id, "x", 1, 1_000_000, seen)

    async def step(self, now_s: float) -> None:
        await self.provisioner.step(now_s)
        await asyncio.gather(*self.provisioner._tasks.values())

    def commands_of(self, action: str) -> list[dict[str, object]]:
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [q for line in lines if (q := json.loads(line))["action"] == action]


async def test_a_node_exists_while_instances_are_assigned_to_it(tmp_path: Path) -> None:
    """The node is created once, stays while its instances end, and is deleted
    after an idle minute.
    """
    b = Bench(tmp_path)
    b.assign("a")
    for at_s in (0.0, 5.0, 10.0):
        await b.step(at_s)
    assert b.commands_of("create") == [
        {"action": "create", "node": NODE, "region": "us", "pool": "l4", "market": "spot",
         "gpu": "L4", "gpus": 1}
    ]  # fmt: skip
    b.runs("a")
    b.assign(generation=2)
    await b.step(100.0)
    await b.step(300.0)
    assert not b.commands_of("delete")  # an instance still runs
    b.runs("a", state=InstanceState.STOPPED)
    await b.step(305.0)
    await b.step(360.0)
    assert not b.commands_of("delete")
    await b.step(365.0)
    assert b.commands_of("delete") == [{"action": "delete", "node": NODE}]
    b.assign("b", generation=3)
    await b.step(400.0)
    assert len(b.commands_of("create")) == 2


async def test_a_node_that_cannot_be_created_counts_as_failed_launches(tmp_path: Path) -> None:
    """The failure is reported once per plan, and withdrawn when the node has no
    assigned instance.
    """
    b = Bench(tmp_path, "create")
    b.assign("a", "b")
    await b.step(0.0)
    await b.step(5.0)
    assert len(b.commands_of("create")) == 1
    found = b.statuses[NODE]
    assert [seen.state for seen in found.instances] == [InstanceState.FAILED] * 2
    assert "no quota" in found.instances[0].reason
    assert found.observed_generation == 1
    b.assign(generation=2)
    await b.step(10.0)
    assert NODE not in b.statuses
    b.assign("c", generation=3)
    await b.step(15.0)
    assert len(b.commands_of("create")) == 2


async def test_a_reporting_executor_outweighs_the_command(tmp_path: Path) -> None:
    b = Bench(tmp_path, "create")
    b.assign("a")
    b.runs("a")
    await b.step(0.0)
    assert b.statuses[NODE].executor == "x"


async def test_no_node_is_changed_while_the_existing_nodes_are_unknown(tmp_path: Path) -> None:
    b = Bench(tmp_path, "list")
    b.assign("a")
    await b.step(0.0)
    assert not b.commands_of("create")


async def test_a_failure_states_the_last_line_of_standard_error(tmp_path: Path) -> None:
    """This holds even if a child process of the command keeps standard error open."""
    body = (
        "import subprocess, sys; print('trying', file=sys.stderr)\n"
        "left = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(left.pid))\n"
        "sys.exit('quota of us-a exceeded\\n')"
    )
    try:
        with pytest.raises(HookFailed, match=r"^exit code 1: quota of us-a exceeded$"):
            await ask((sys.executable, "-S", "-c", body), {"action": "list"}, 30.0)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises(HookFailed, match=r"^exit code 3$"):
        await ask((sys.executable, "-S", "-c", "raise SystemExit(3)"), {"action": "list"}, 30.0)


async def test_the_command_works_without_temporary_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none() -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", none)
    assert await ask((sys.executable, "-S", "-c", "print('{}')"), {"action": "list"}, 30.0) == {}
    with pytest.raises(HookFailed, match=r"^exit code 1$"):
        await ask((sys.executable, "-S", "-c", "raise SystemExit('no')"), {"action": "list"}, 30.0)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("print('[]')", "JSON object"),
        ("print('yes')", "no JSON"),
        ("import time; time.sleep(60)", "no answer within 0.3 s"),
        ('print(\'{"error": "sold out"}\')', "sold out"),
    ],
)
async def test_an_invalid_answer_is_a_failure(body: str, why: str) -> None:
    with pytest.raises(HookFailed, match=why):
        await ask(
            (sys.executable, "-S", "-c", body), {"action": "list"}, 0.3 if "sleep" in body else 30.0
        )


def test_an_unparsable_command_is_refused_at_the_start() -> None:
    for line in ('nodes "', ""):
        with pytest.raises(UserError, match="us/l4/spot"):
            Provisioner({POOL.id: line}, lambda: Cluster((POOL,), ()), {}, {}, lambda: True, int)
