"""The whole stack on real processes and a real broker while a seeded script breaks it.

    python -m loadtests.chaos [--seed N] [--minutes M] [--broker HOST:PORT]

After each fault the promises that apply are checked; what broke, for how long and what it cost goes
to the terminal, an HTML page with a timeline and a JSON file. Without --broker the embedded broker
is used, of whose durability, compaction and fencing nothing is promised.
"""
