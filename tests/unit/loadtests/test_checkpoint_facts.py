"""Public model configurations: sizes match those of their publishers, a page lists them, and a
damaged file gives no traceback.
"""

from __future__ import annotations

import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.architecture import from_config
from loadtests.checkpoint_fuzz import run
from loadtests.checkpoint_table import PAGE, facts, with_table

ROWS = facts()
INDEXED = [name for name, row in ROWS.items() if "index_bytes" in row]
STATED = [name for name, row in ROWS.items() if "published" in row]


def test_at_least_60_public_configurations_are_read_and_each_names_its_source() -> None:
    read = 0
    for name, row in ROWS.items():
        assert row["source"]
        try:
            from_config(name, row["config"])
        except InvalidValue as refused:
            assert refused.field.endswith(("model_type", "attn_res_block_size"))
        else:
            read += 1
    assert read >= 60


@pytest.mark.parametrize("name", INDEXED)
def test_weight_sizes_equal_the_bytes_in_the_checkpoint_index(name: str) -> None:
    """Encoders that the configuration does not describe are left out."""
    row = ROWS[name]
    found = from_config(name, row["config"]).weight_bytes
    if "not_described" in row:
        assert 0.8 * row["index_bytes"] < found < row["index_bytes"]
    else:
        assert found == pytest.approx(row["index_bytes"], rel=0.01)


@pytest.mark.parametrize("name", STATED)
def test_parameters_are_those_that_the_publisher_states(name: str) -> None:
    """The tolerance for active parameters is wider, because publishers disagree on whether
    embeddings count."""
    row = ROWS[name]
    found = from_config(name, row["config"])
    assert found.params / 1e9 == pytest.approx(row["published"], rel=0.015)
    if "published_active" in row:
        assert found.active_params / 1e9 == pytest.approx(row["published_active"], rel=0.13)


def test_the_page_has_the_table_of_these_facts() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "run python -m loadtests.checkpoint_table --write"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_mutated_configuration_gives_a_value_or_one_error_line(seed: int) -> None:
    found = run(300, seed)
    assert found.keys() == {"read", "refused"}, found
