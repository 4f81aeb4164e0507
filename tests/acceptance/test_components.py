"""A model of components through the whole loop: requests go the planned paths."""

from __future__ import annotations

from tests.acceptance.conftest import Start

# Two stages for photos on cheap GPUs: nothing else is worth its price.
OMNI = """mode: act
regions:
  eu: {l4: {gpu: L4, per_node: 4, max: 2, price: 0.85}}
models:
  omni:
    req_per_s: 1.5
    components: {image: {}, llm: {after: [image]}}
    requests:
      text:  {share: 60%, uses: [llm]}
      photo: {share: 40%, uses: [image, llm]}
    deployments:
      image: {runs: [image], req_per_s: {L4: 9}, start_time: 5s}
      llm:   {runs: [llm], req_per_s: {L4: 2}, start_time: 5s}
      both:  {runs: [image, llm], req_per_s: {L4: 0.3}, start_time: 5s}
"""


def test_requests_go_the_planned_paths_and_all_are_served(start: Start) -> None:
    """Planned against served within two points (or one request), by the summary that users see."""
    run = start("--for", "28", config=OMNI)
    assert run.end(90.0) == 0
    assert run.errors == ""
    requests = run.summary["requests"]
    assert requests["sent"] > 40
    assert requests["served"] == requests["sent"]
    ways = run.summary["ways"]
    assert {row["kind"] for row in ways} == {"text", "photo"}
    assert any("/" in row["way"] for row in ways)  # some photos go through two stages
    for row in ways:
        of_kind = sum(other["requests"] for other in ways if other["kind"] == row["kind"])
        assert abs(row["served"] - row["planned"]) <= max(0.02, 1.0 / of_kind), row
