"""Randomised test of the control loop with injected faults, on a virtual clock, over many seeds.

    python -m loadtests.invariants --seeds 1000

Real parts: `decide`, the planner, leader election, terms, outbox, tick loop, control state, codecs,
signatures, windows and the executor's reconciler. Simulated parts: the broker, processes, engines
and feeds. A failing seed is printed, and `--seed N` reproduces it.
"""
