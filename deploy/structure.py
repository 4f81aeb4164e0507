"""Measure the structure: cycles of folders, lines of packages, and the walk of a tick.

    python deploy/structure.py

A walk lists what one tick of one model runs. A hop is a call from a function of one file to a
function of another file of the product.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from deploy.rooms import imports  # noqa: E402  the path comes first

PRODUCT = ("autoscaler", "streams", "executors", "topics")


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of rooms of `graph` that import each other, directly or through others."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph.get(waiting.pop(), set()) - found:
                found.add(target)
                waiting.append(target)
        return found

    reach = {room: reached(room) for room in graph}
    sets = {frozenset(b for b in reach if b in reach[a] and a in reach[b]) for a in graph}
    return sorted(sorted(rooms) for rooms in sets if rooms)


def lines(package: str) -> int:
    """Lines of the Python files of `package`."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / package).rglob("*.py"))
    return sum(len(text.splitlines()) for text in texts)


@dataclass(frozen=True, slots=True)
class Walk:
    """Path of a call. files: those of the product that ran, relative to the repository. hops: calls
    from one of them to another."""

    files: frozenset[str]
    hops: int


def walk(run: Callable[[], object]) -> Walk:
    """The walk of `run` through autoscaler/ and topics/."""
    files: set[str] = set()
    hops = 0

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal hops
        if event != "call" or (name := _product_file(frame)) is None:
            return
        files.add(name)
        caller = frame.f_back
        while caller is not None and _product_file(caller) is None:
            caller = caller.f_back
        hops += caller is not None and _product_file(caller) != name

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return Walk(frozenset(files), hops)


def _product_file(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
    return name if name.startswith(("autoscaler/", "topics/")) else None


def quiet_tick() -> Walk:
    """The tick of one steady model in which nothing happens."""
    from tests.unit.decide.decide_world import world  # the tests are not installed

    steady = world(8.0).run(300)
    return _walk_of_decide(steady.tick)


def role_switch_tick() -> Walk:
    """The tick that begins role switches of one model."""
    from tests.unit.decide.test_role_switches import changed, settled

    found = changed(settled())
    for _ in range(90):
        made = _walk_of_decide(found.tick)
        if any(group.switch is not None for group in found.state.groups):
            return made
    raise RuntimeError("no role switch began")


def _walk_of_decide(tick: Callable[[], object]) -> Walk:
    """The walk of the call of `decide` in `tick`."""
    from tests.unit.decide import decide_world

    decide = decide_world.decide
    walks: list[Walk] = []

    def walked(*inputs: object) -> object:
        result: list[object] = []
        walks.append(walk(lambda: result.append(decide(*inputs))))  # type: ignore[arg-type]
        return result[0]

    decide_world.decide = walked  # type: ignore[assignment]
    try:
        tick()
    finally:
        decide_world.decide = decide
    return walks[-1]


def main() -> None:
    for package in PRODUCT:
        found = cycles(imports(ROOT / package))
        print(f"{package}: {lines(package)} lines, cycles of folders: {found or 'none'}")
    print(f"loadtests: {lines('loadtests')} lines")
    for name, made in (("quiet tick", quiet_tick()), ("role switch", role_switch_tick())):
        modes = sum("/modes/" in file for file in made.files)
        print(f"{name}: {len(made.files)} files ({modes} of modes), {made.hops} hops")


if __name__ == "__main__":
    main()
