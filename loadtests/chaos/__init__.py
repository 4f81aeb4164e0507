"""Fault injection into the whole stack, on real processes and a real broker, by a seeded script.

    python -m loadtests.chaos [--seed N] [--minutes M] [--broker HOST:PORT]

After each fault the promises that apply are checked. The terminal, an HTML page with a timeline and
a JSON file show the broken promises, their duration and their cost. Without --broker the embedded
broker is used, which promises no durability, compaction or fencing.
"""
