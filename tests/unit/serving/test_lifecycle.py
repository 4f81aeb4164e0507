"""The table of transitions, and the diagram that is drawn from the table."""

from pathlib import Path

import pytest

from autoscaler.serving.lifecycle import (
    TRANSITIONS,
    IllegalEvent,
    InstanceState,
    LifecycleEvent,
    after,
    diagram,
)


@pytest.mark.parametrize("state", InstanceState)
@pytest.mark.parametrize("event", LifecycleEvent)
def test_an_event_is_in_the_table_or_raises(state: InstanceState, event: LifecycleEvent) -> None:
    """The table decides every pair of state and event; the error for an illegal pair names the
    legal events."""
    if (state, event) in TRANSITIONS:
        assert after(state, event) is TRANSITIONS[(state, event)]
        return
    with pytest.raises(IllegalEvent) as caught:
        after(state, event)
    assert caught.value.state is state
    for legal in [e for s, e in TRANSITIONS if s is state]:
        assert legal in str(caught.value)


def test_every_state_can_be_reached_and_left_or_ends() -> None:
    """Every state is reachable from starting; only a stopped or failed instance may be dropped."""
    reached = {InstanceState.STARTING}
    while True:
        more = {to for (state, _), to in TRANSITIONS.items() if state in reached} | reached
        if more == reached:
            break
        reached = more
    assert reached == set(InstanceState)


def test_a_stopped_instance_was_draining_or_failed() -> None:
    """No transition leads from serving to stopped: a drain comes between, also before a sleep."""
    before = {state for (state, _), to in TRANSITIONS.items() if to is InstanceState.STOPPED}
    asleep = InstanceState.ASLEEP
    assert before == {InstanceState.DRAINING, InstanceState.STOPPING, asleep, InstanceState.FAILED}
    stopping = {state for (state, _), to in TRANSITIONS.items() if to is InstanceState.STOPPING}
    assert stopping == {InstanceState.DRAINING, asleep}
    sleeping = {state for (state, _), to in TRANSITIONS.items() if to is asleep}
    assert sleeping == {InstanceState.DRAINING}


def test_the_documentation_shows_the_table() -> None:
    """docs/lifecycle.md contains exactly the diagram of the table."""
    page = Path(__file__).parents[3] / "docs" / "lifecycle.md"
    drawn = page.read_text().partition("```mermaid\n")[2].partition("```")[0]
    assert drawn == diagram()
