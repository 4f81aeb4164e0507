"""Randomised test of the control loop with injected faults, on a virtual clock, over many seeds.

    python -m loadtests.invariants --seeds 1000

Real: `decide`, the planner, election, seat, terms, outbox, tick loop, the fold of the topics,
codecs, signatures, windows and the executor's reconciler. Simulated: the broker, processes, engines
and feeds. A failing seed is printed; `--seed N` reproduces it.
"""
