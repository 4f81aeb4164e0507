"""The decomposition: one covering knapsack per demand row; shared resource rows connect the
knapsacks.

It solves problems whose columns each serve one demand row and only use resources. A cover is a set
of columns that serves the whole demand of one row. Mixes of whole covers (Dantzig and Wolfe) bound
the cost far better than the linear relaxation. Columns are priced as arrays, so a million columns
take milliseconds. `cover_form` checks whether a problem has this structure.
"""
