"""Results: each figure of the README and of docs/results, what measures it, and its record.

`registry` lists them, `records` keeps what was measured, and `pages` writes the documentation from
the records.
"""
