"""Hindsight: the cheapest fleet over time for a demand that is known beforehand.

`bound` gives a lower bound of the cost of any policy; `plan` gives a fleet that could have been
run, with its cost. Both are planned, not simulated.
"""
