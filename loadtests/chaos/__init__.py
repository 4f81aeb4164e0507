"""Fault injection into the whole stack, on real processes and a real broker, by a seeded script.

    python -m loadtests.chaos [--seed N] [--minutes M] [--broker HOST:PORT]

After each fault, the promises that apply to it are checked. Broken promises, their duration and
their cost are shown on the terminal, on an HTML page with a timeline, and in a JSON file. Without
--broker the embedded broker is used, which guarantees no durability, compaction or fencing.
"""
