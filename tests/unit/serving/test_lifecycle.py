"""The transition table of the instance life cycle, and its diagram."""

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
def test_every_event_outside_of_the_table_raises(
    state: InstanceState, event: LifecycleEvent
) -> None:
    """The error for an illegal pair of state and event names the legal events."""
    if (state, event) in TRANSITIONS:
        assert after(state, event) is TRANSITIONS[(state, event)]
        return
    with pytest.raises(IllegalEvent) as caught:
        after(state, event)
    assert caught.value.state is state
    for legal in [e for s, e in TRANSITIONS if s is state]:
        assert legal in str(caught.value)


def test_every_state_is_reachable_and_only_final_states_have_no_exit() -> None:
    """Every state is reachable from starting. Only a stopped or failed instance may be dropped."""
    reached = {InstanceState.STARTING}
    while True:
        more = {to for (state, _), to in TRANSITIONS.items() if state in reached} | reached
        if more == reached:
            break
        reached = more
    assert reached == set(InstanceState)


def test_a_stopped_instance_was_draining_or_failed() -> None:
    """No transition leads from serving to stopped or asleep without a drain."""
    before = {state for (state, _), to in TRANSITIONS.items() if to is InstanceState.STOPPED}
    asleep = InstanceState.ASLEEP
    assert before == {InstanceState.DRAINING, InstanceState.STOPPING, asleep, InstanceState.FAILED}
    stopping = {state for (state, _), to in TRANSITIONS.items() if to is InstanceState.STOPPING}
    assert stopping == {InstanceState.DRAINING, asleep}
    sleeping = {state for (state, _), to in TRANSITIONS.items() if to is asleep}
    assert sleeping == {InstanceState.DRAINING}


def test_the_documentation_shows_the_table() -> None:
    """docs/explanation/lifecycle.md contains exactly the diagram of the table."""
    page = Path(__file__).parents[3] / "docs" / "explanation" / "lifecycle.md"
    drawn = page.read_text().partition("```mermaid\n")[2].partition("```")[0]
    assert drawn == diagram()
