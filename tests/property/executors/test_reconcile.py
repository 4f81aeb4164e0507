"""Reconciliation of a node over generated histories: assignments in any order, and processes that
die.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from executors.node.node_state import Kill, Launch, NodeState, ProcessObservation, Rules, Terminate
from executors.node.reconcile import accept, observed_instances, reconcile
from topics.fleet import Assignment, DesiredInstance, InstanceState

RULES = Rules()
NODE = NodeState("n", "r/p/owned")


@dataclass
class World:
    """The processes of a node, which commands start and end."""

    alive: dict[str, DesiredInstance] = field(default_factory=dict)
    launches: list[str] = field(default_factory=list)
    load: dict[str, int] = field(default_factory=dict)

    def observations(self, state: NodeState, now_ms: int) -> dict[str, ProcessObservation]:
        return {
            item.instance: ProcessObservation(
                item.instance in self.alive, True, self.load.get(item.instance, 0), 0, now_ms
            )
            for item in state.instances
            if item.has_process
        }

    def obey(self, commands: tuple) -> None:
        for command in commands:
            if isinstance(command, Launch):
                taken = {gpu for other in self.alive.values() for gpu in other.gpus}
                assert not taken.intersection(command.desired.gpus), "a GPU has one process"
                self.alive[command.desired.instance] = command.desired
                self.launches.append(command.desired.instance)
            elif isinstance(command, (Terminate, Kill)):
                self.alive.pop(command.instance, None)


def _count(state: NodeState) -> int:
    return sum(state.refused.values())


def run(state: NodeState, world: World, now_ms: int, steps: int = 1) -> tuple[NodeState, int]:
    for _ in range(steps):
        state, commands = reconcile(state, world.observations(state, now_ms), now_ms, RULES)
        world.obey(commands)
        now_ms += 1000
    return state, now_ms


@st.composite
def assignments(draw: st.DrawFn) -> list[Assignment]:
    """A history of assignments. Each generation has some of eight instances on
    a node of four GPUs.
    """
    history = []
    for generation in range(1, draw(st.integers(1, 6)) + 1):
        free = [0, 1, 2, 3]
        wishes = []
        for name in draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=4)):
            if not free:
                break
            wishes.append(
                DesiredInstance(name, "m", "aggregated", "g", (free.pop(0),), drain=draw(
                    st.booleans() if generation > 1 else st.just(False)))
            )  # fmt: skip
        token = 1 + generation // 3
        history.append(Assignment("n", "r/p/owned", generation, token, 0, tuple(wishes)))
    return history


@settings(max_examples=150, deadline=None)
@given(assignments(), st.data())
def test_the_newest_assignment_wins_over_late_and_duplicate_ones(
    history: list[Assignment], data: st.DataObject
) -> None:
    """Older assignments are refused, whatever comes between."""
    shuffled = data.draw(st.permutations([*history, *history, history[-1]]))
    state, world, now_ms = NODE, World(), 1_000_000
    highest = (0, 0)
    for message in shuffled:
        before = state
        state = accept(state, message)
        order = (message.leader_token, message.generation)
        if order <= highest:
            assert state.assignment == before.assignment
        assert _count(state) - _count(before) == int(order < highest)
        highest = max(highest, order)
        state, now_ms = run(state, world, now_ms)
    assert state.assignment == history[-1]
    state, now_ms = run(state, world, now_ms, 5)
    wanted = {wish.instance for wish in history[-1].instances if not wish.drain}
    assert set(world.alive) == wanted


@settings(max_examples=150, deadline=None)
@given(assignments(), st.data())
def test_a_step_without_a_change_gives_no_command(
    history: list[Assignment], data: st.DataObject
) -> None:
    """In a stable state, duplicates and further steps give no command and no change."""
    state, world, now_ms = NODE, World(), 1_000_000
    for message in history:
        state, now_ms = run(accept(state, message), world, now_ms, data.draw(st.integers(0, 3)))
    state, now_ms = run(state, world, now_ms, 8)
    for message in history:
        again = accept(state, message)
        assert again.instances == state.instances
        settled, commands = reconcile(again, world.observations(again, now_ms), now_ms, RULES)
        assert commands == ()
        assert [i.state for i in settled.instances] == [i.state for i in state.instances]


@settings(max_examples=150, deadline=None)
@given(assignments(), st.lists(st.sampled_from("abcdefgh"), max_size=30))
def test_dying_processes_share_no_gpu_and_restarts_are_limited(
    history: list[Assignment], deaths: list[str]
) -> None:
    """Engines die at any time. They are restarted at most `max_attempts` times in a row."""
    state, world, now_ms = NODE, World(), 1_000_000
    for message in history:
        state, now_ms = run(accept(state, message), world, now_ms)
        for name in deaths:
            world.alive.pop(name, None)
            state, now_ms = run(state, world, now_ms)
            observed_instances(state)  # Every state can be reported.
    state, now_ms = run(state, world, now_ms, 200)
    for item in state.instances:
        assert item.failures <= RULES.max_attempts
        given_up = item.failures == RULES.max_attempts
        # A failed instance that is no longer assigned is stopped and not restarted.
        over = item.state in (InstanceState.FAILED, InstanceState.STOPPED)
        assert over if given_up else item.state is not InstanceState.FAILED
        assert item.has_process == (item.instance in world.alive)
