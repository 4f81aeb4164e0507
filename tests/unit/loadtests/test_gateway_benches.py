"""The reports of the gateway benchmarks."""

from __future__ import annotations

from loadtests.gateway_attacks import Suffered
from loadtests.gateway_load import scaling
from loadtests.gateway_processes import Target


def test_an_attack_passes_within_twice_the_quiet_latency_or_if_the_machine_is_overloaded() -> None:
    def verdict(attacked: float, beside: float) -> object:
        figures = Suffered([1.0] * 200, [attacked] * 200, [beside] * 200).figures()
        assert figures["ratio"] == attacked
        return figures["within_twice"]

    assert verdict(1.9, 1.0) == "held"
    assert verdict(5.0, 3.0) == "machine"
    assert verdict(5.0, 1.0) == "no"


def test_scaling_compares_each_proxy_with_itself_at_equal_load_per_process() -> None:
    def target(name: str, workers: int, even_cpu_s: float) -> Target:
        made = Target(name, "a:1", (1,), workers)
        made.even, made.even_cpu_s = 100 * workers, even_cpu_s
        made.streams, made.stream_cpu_s = 10 * workers, 1.0 * workers
        return made

    targets = [
        target("direct", 1, 1.0), target("bare", 1, 1.0), target("bare-2", 2, 4.0),
        target("shoal", 1, 1.0), target("shoal-2", 2, 2.0),
    ]  # fmt: skip
    assert scaling(targets) == {
        "bare-2": {"plain": 1.0, "stream": 2.0},
        "shoal-2": {"plain": 2.0, "stream": 2.0},
    }
