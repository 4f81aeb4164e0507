"""Per-layer inputs of Gemma 3n and the small Gemma 4 models: each layer has a table with an input
for each token."""

from __future__ import annotations

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.checkpoint.matrices import Matrix


def per_layer_inputs(
    keys: Keys, layers: int, hidden: int
) -> tuple[tuple[Matrix, ...], tuple[Matrix, ...]]:
    """Matrices of each layer, and matrices outside of layers; none for models without per-layer
    inputs."""
    width = keys.number("hidden_size_per_layer_input")
    if not width:
        return (), ()
    rows = keys.number_of("vocab_size_per_layer_input")
    each = [
        Matrix(("per_layer_input_gate",), width, hidden),
        Matrix(("per_layer_projection",), hidden, width),
    ]
    outside = [
        Matrix(("embed_tokens_per_layer",), rows, layers * width, "embedding"),
        Matrix(("per_layer_model_projection",), layers * width, hidden, "small"),
    ]
    if rank := keys.number("laurel_rank"):
        each += [Matrix(("laurel.linear_left",), rank, hidden),
                 Matrix(("laurel.linear_right",), hidden, rank)]  # fmt: skip
    if (streams := keys.number("altup_num_inputs", high=1024)) > 1:
        outside.append(Matrix(("altup_projections",), 2 * (streams - 1) * hidden, hidden, "small"))
    return tuple(each), tuple(outside)
