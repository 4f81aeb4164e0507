"""Mode components: models of several parts, planned as cells. Registers its hooks."""

from __future__ import annotations

from autoscaler.modes.components.component_cells import candidate_cells, evaluate_cell
from autoscaler.planning.candidate_combos import CANDIDATE_CELLS, EVALUATE_CELL

CANDIDATE_CELLS.provide(candidate_cells)
EVALUATE_CELL.provide(evaluate_cell)
