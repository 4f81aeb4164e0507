"""The live view by width and height, and its marks for bad values."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from streams.tools.up.event_log import Event, clock
from streams.tools.up.run_state import Picture
from streams.tools.up.screen_layout import Facts, screen
from tests.unit.tools.up.status_records import NOW_MS, instance, telemetry
from topics.records import (
    Decision,
    Endpoint,
    InstanceState,
    PlanRecord,
    RouteGroup,
    Routes,
    Status,
)
from topics.sketch import bucket_of

BEGAN_MS = NOW_MS - 740_000
FACTS = Facts(("shoal: title",), "API | Ctrl-C stops everything", (), BEGAN_MS, 100, 98, 0, 10.5, 2)
ALWAYS = ("model", "load", "where", "SLO now", "USD/h")


def shown(
    picture: Picture, width: int, height: int | None = None, facts: Facts = FACTS
) -> list[str]:
    lines = [line.plain for line in screen(picture, NOW_MS, facts, width, height)]
    assert all(len(line) <= width for line in lines)
    assert height is None or len(lines) <= height
    return lines


def line_of(lines: list[str], word: str) -> str:
    (found,) = (line for line in lines if line.startswith(word))
    return found


def fill(picture: Picture) -> None:
    """Add a fleet. mini has three L4 in eu-west, one of them spot, and one that starts. code has no
    instance.
    """
    group = RouteGroup("g:1", 8.0, aggregated=(Endpoint("i1", "127.0.0.1:1"),))
    picture.add(Routes("mini", 5, 2, NOW_MS, 500, 30, (group,)))
    nodes = [("a", "on-demand", InstanceState.READY), ("b", "on-demand", InstanceState.READY),
             ("c", "spot", InstanceState.READY), ("d", "spot", InstanceState.STARTING)]  # fmt: skip
    for name, market, state in nodes:
        seen = instance(f"i-{name}", state, (0,))
        picture.add(Status(f"n-{name}", f"eu-west/l4/{market}", "e", 1, NOW_MS, (seen,)))
    picture.add(telemetry())
    picture.add(
        Decision(
            1, 1, "mini", "scale_out", NOW_MS, True, "15.1 req/s is over 80% of 17.6; +2.90/h",
            change=(("mini:a1@eu-west/l4/spot", 1),),
        )
    )  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_important_columns_stay_at_every_width(picture: Picture, width: int) -> None:
    fill(picture)
    lines = shown(picture, width)
    header = line_of(lines, "model")
    assert all(title in header for title in ALWAYS)
    assert "3×L4 eu-west, 1 spot +1" in line_of(lines, "mini")
    assert "75.0%" in line_of(lines, "mini")
    assert ("TTFT p95" in header, "TPOT p95" in header) == (width >= 80, width >= 80)
    assert ("capacity" in header) == (width >= 100)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_twelve_rows_show_clock_cost_models_and_the_last_decision(
    picture: Picture, width: int
) -> None:
    fill(picture)
    text = "\n".join(shown(picture, width, 12))
    for words in ("+12:20", "98 of 100 served", "USD/h (6.80 on-demand, 2.56 spot)", "10.50 USD",
                  "Ctrl-C stops everything", "\nmini", "\ncode", "\nchat",
                  "+12:20 mini +1×L4 eu-west, 1 spot: 15.1 req/s"):  # fmt: skip
        assert words in text


def test_a_long_state_takes_up_to_three_lines_and_keeps_its_addresses(picture: Picture) -> None:
    url = "http://127.0.0.1:35253"
    state = f"console {url} | API http://127.0.0.1:28239/v1 | ready in 16 s | Ctrl-C stops all"
    facts = Facts((), state, (), BEGAN_MS, 1, 1, 0, 1.0, None)
    lines = shown(picture, 60, 24, facts)
    assert url in lines[0] and lines[1].endswith("Ctrl-C stops all")


def test_a_screen_of_24_rows_has_sections_with_one_fact_a_line(picture: Picture) -> None:
    fill(picture)
    picture.add(Decision(2, 1, "mini", "infeasible", NOW_MS, False, "pool full",
                         demand_req_per_s=2.0, capacity_req_per_s=1.0))  # fmt: skip
    facts = Facts(
        ("shoal: title",), "API", ("! lost: executor",), BEGAN_MS, 100, 90, 10, 1.5, 700.0
    )
    lines = shown(picture, 80, 24, facts)
    headings = [line for line, above in zip(lines[1:], lines, strict=False) if not above]
    assert headings == ["Run at +12:20", "Models", "Problems", "Events"]
    at = lines.index("Run at +12:20")
    assert lines[at + 1 : at + 6] == [
        "  requests    90 of 100 served",
        "  ! failed    10 requests",
        "  ! sent late 700 ms (p99)",
        "  cost        9.36 USD/h (6.80 on-demand, 2.56 spot)",
        "  spent       1.50 USD",
    ]
    at = lines.index("Problems")
    assert lines[at + 1 : at + 3] == ["! lost: executor", "! mini falls short: pool full"]


def test_a_missed_slo_has_a_colour_and_a_sign(picture: Picture) -> None:
    """The sign is also shown without colours. A latency above its limit is marked too."""
    picture.add(telemetry(ttft_ms={bucket_of(1300.0): 4}))
    lines = screen(picture, NOW_MS, FACTS, 100)
    (mini,) = (line for line in lines if line.plain.startswith("mini"))
    assert "!75.0%" in mini.plain
    assert "!1.3/1.0 s" in mini.plain
    assert " 20/50 ms" in mini.plain
    with_colour, without = io.StringIO(), io.StringIO()
    Console(file=with_colour, width=100, force_terminal=True, no_color=False,
            color_system="standard").print(mini)  # fmt: skip
    Console(file=without, width=100, force_terminal=True, no_color=True).print(mini)
    assert "31m" in with_colour.getvalue()
    assert "31m" not in without.getvalue()
    assert "!75.0%" in without.getvalue()


def test_an_slo_that_is_met_has_no_sign(picture: Picture) -> None:
    picture.add(telemetry(attained=4))
    assert "!" not in line_of(shown(picture, 100), "mini")


def test_a_load_on_almost_no_capacity_stays_readable(picture: Picture) -> None:
    """A GPU that cannot serve the request lengths has a capacity of 1e-8 req/s."""
    group = RouteGroup("g:1", 1e-8, aggregated=(Endpoint("i1", "127.0.0.1:1"),))
    picture.add(Routes("mini", 5, 2, NOW_MS, 500, 30, (group,)))
    picture.add(telemetry())
    assert ">999%" in line_of(shown(picture, 100), "mini")


def test_present_faults_are_shown_first(picture: Picture) -> None:
    """These are failed processes, failed requests and unmet demand. They come first even on a small
    screen.
    """
    fill(picture)
    picture.add(Decision(2, 1, "mini", "infeasible", NOW_MS, False, "pool full",
                         demand_req_per_s=2.0, capacity_req_per_s=1.0))  # fmt: skip
    alerts = ("! down: controller; starting again",)
    facts = Facts((), "API", alerts, BEGAN_MS, 100, 90, 10, 1.0, 700.0)
    lines = shown(picture, 60, 12, facts)
    assert alerts[0] in lines
    assert "! mini falls short: pool full" in lines
    assert "! 10 failed" in "\n".join(lines)
    assert "! load sent late, p99 700 ms" in "\n".join(lines)


def test_the_worst_of_many_models_are_shown(picture: Picture) -> None:
    """The view also states the number of omitted models."""
    picture.add(telemetry(model="code"))
    lines = shown(picture, 80, 6)
    assert line_of(lines, "code")
    assert "and 2 more models" in lines


def test_a_lost_instance_is_shown_at_once(picture: Picture) -> None:
    ready = instance("i1", InstanceState.READY, (0,))
    picture.add(Status("n", "eu-west/l4/spot", "e", 1, NOW_MS, (ready,)))
    assert list(picture.story) == []
    gone = instance("i1", InstanceState.STARTING, (0,), restarts=1, reason="signal SIGKILL")
    picture.add(Status("n", "eu-west/l4/spot", "e", 1, NOW_MS + 5, (gone,)))
    picture.add(Status("n", "eu-west/l4/spot", "e", 1, NOW_MS + 9, (gone,)))
    event = Event(NOW_MS + 5, "mini lost an instance on n: signal SIGKILL", bad=True)
    assert list(picture.story) == [event]
    assert event.line(BEGAN_MS) == "+12:20 mini lost an instance on n: signal SIGKILL"


def test_owned_nodes_and_phases_are_named(picture: Picture) -> None:
    for name, phase, gpus in (("i1", "prefill", (0, 1)), ("i2", "decode", (2, 3, 4, 5))):
        seen = instance(name, InstanceState.READY, gpus, model="chat", phase=phase)
        picture.add(Status(f"n-{name}", "us-east/h100/owned", "e", 1, NOW_MS, (seen,)))
    wide = line_of(shown(picture, 140), "chat")
    assert "d 4×H100-SXM us-east, owned; p 2×H100-SXM us-east, owned" in wide


def test_a_new_plan_shows_additions_and_removals(picture: Picture) -> None:
    change = (("mini:a1@eu-west/l4/spot", -2), ("mini:a1@us-east/l40s/on-demand", 1))
    picture.add(Decision(1, 1, "mini", "replan", NOW_MS, False, "why; -1.28/h", change=change))
    assert list(picture.story)[-1].text == (
        "mini replan +1×L40S us-east; -2×L4 eu-west, 2 spot: why; -1.28/h "
        "(recommended, not applied)"
    )


def test_a_proposal_shows_its_number(picture: Picture) -> None:
    change = (("mini:a1@us-east/l40s/on-demand", 1),)
    picture.add(
        Decision(12, 1, "mini", "scale_out", NOW_MS, False, "why", change=change,
                 expires_ms=NOW_MS + 5)
    )  # fmt: skip
    assert list(picture.story)[-1].text == "mini +1×L40S us-east: why (#12 waits for approval)"


@pytest.mark.parametrize(
    ("elapsed_ms", "said"),
    [(0, "+00:00"), (740_000, "+12:20"), (3_740_000, "+1:02:20"), (-5, "+00:00")],
)
def test_the_clock_of_the_screen(elapsed_ms: int, said: str) -> None:
    assert clock(elapsed_ms) == said


def test_no_figure_is_cut_at_80_columns(picture: Picture) -> None:
    """All figures have three digits, and instances are in every state. Names of places are
    shortened first.
    """
    late = {bucket_of(12_300.0): 4}
    picture.add(telemetry(arrivals=400, ttft_ms=late, tpot_ms={bucket_of(123.0): 4}))
    group = RouteGroup("g:1", 412.5, aggregated=(Endpoint("i1", "127.0.0.1:1"),))
    picture.add(Routes("mini", 5, 2, NOW_MS, 500, 30, (group,)))
    states = [InstanceState.READY] * 12 + [InstanceState.STARTING] * 3
    for number, state in enumerate([*states, *[InstanceState.DRAINING] * 2]):
        seen = instance(f"i{number}", state, (0,))
        picture.add(Status(f"n{number}", "us-east/l40s/on-demand", "e", 1, NOW_MS, (seen,)))
    mini = line_of(shown(picture, 80), "mini")
    assert "12×L40S us-east +3 -2" in mini
    assert "!12/1.0 s" in mini
    assert "97%" in mini
    assert mini.endswith("122")
    assert "…" not in mini


def test_no_plan_and_no_data_are_dashes(picture: Picture) -> None:
    picture.add(PlanRecord(1, 1, NOW_MS, "full", 0.0, -1.0))
    mini = line_of(shown(picture, 100), "mini")
    assert mini.split()[1:5] == ["-", "0.0", "-", "none"]
