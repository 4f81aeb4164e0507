"""The decomposition: one covering knapsack for each demand row, tied by shared resource rows.

It solves problems whose columns each serve one demand row and only use resources. For these, mixes
of whole covers (Dantzig and Wolfe) bound the cost far better than the linear relaxation, and
columns are priced as arrays, so that a million of them take milliseconds. `cover_form` says which
problems have this structure.
"""
