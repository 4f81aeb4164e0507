"""Results: records follow the code, pages follow the records, and figures have intervals."""

from __future__ import annotations

import ast

import pytest

from loadtests.results import pages, records
from loadtests.results.entry import ROOT, Entry, Figures
from loadtests.results.records import Record, SeedRun
from loadtests.results.registry import ENTRIES
from loadtests.results.statistics import difference, estimate, relative

MOST_WORDS = 9_000


def measure(seed: int) -> Figures:
    return {"usd": 10.0 + seed, "by": {"cpu_s": 2.0 * seed}}


ENTRY = Entry("test", "page", "A test", measure, (1, 2), by_figure={"cpu_s": 2.0})


def test_every_record_belongs_to_an_entry_and_has_all_its_seeds() -> None:
    entries = {one.name: one for one in ENTRIES}
    assert len(entries) == len(ENTRIES)
    for path in records.FOLDER.glob("*.json"):
        record = records.read(path.stem)
        assert record is not None
        assert tuple(run.seed for run in record.runs) == entries[path.stem].seeds
        assert "changes" not in record.commit, "after the commit of code, make results ARGS=--pages"


def test_pages_and_readme_are_those_of_the_records() -> None:
    """`make results ARGS=--pages` writes them."""
    assert pages.stale_pages() == []


def test_every_entry_is_on_its_page() -> None:
    for entry in ENTRIES:
        if records.read(entry.name):
            text = (pages.DOCS / f"{entry.page}.md").read_text(encoding="utf-8")
            group = entry.name.partition("-")[0]
            assert entry.name in text or f"ARGS={group}`" in text, entry.name


def test_the_results_stay_short() -> None:
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages.DOCS.glob("*.md"))
    assert words <= MOST_WORDS


def test_a_measurement_has_the_figures_of_each_seed_and_the_code() -> None:
    record = records.measured(ENTRY, ENTRY.seeds)
    assert [run.figures["usd"] for run in record.runs] == [11.0, 12.0]
    assert records.is_current(ENTRY, record)
    assert not records.is_current(Entry("test", "page", "A test", measure, (1, 2, 3)), record)


@pytest.mark.parametrize(
    ("usd", "cpu_s", "outside"),
    [(11.1, 2.0, []), (11.2, 2.0, ["usd"]), (11.0, 5.9, []), (11.0, 6.1, ["by/cpu_s"])],
)
def test_a_figure_outside_of_its_tolerance_is_named(
    usd: float, cpu_s: float, outside: list[str]
) -> None:
    record = records.measured(ENTRY, (1, 2))
    again = Record("test", "", "", "", (SeedRun(1, 0.0, {"usd": usd, "by": {"cpu_s": cpu_s}}),))
    found = records.differences(ENTRY, record, again)
    assert len(found) == len(outside)
    assert all(name in line for name, line in zip(outside, found, strict=True))


def test_a_figure_that_is_missing_is_a_difference() -> None:
    record = records.measured(ENTRY, (1,))
    again = Record("test", "", "", "", (SeedRun(1, 0.0, {"usd": 11.0, "new": 1.0}),))
    assert len(records.differences(ENTRY, record, again)) == 2


def test_code_counts_but_not_its_comments_and_docstrings() -> None:
    def shape(text: str) -> object:
        return records._shape(ast.parse(text))

    plain = shape("def f(x):\n    return x + 1\n")
    assert shape('"""Text."""\ndef f(x):  # why\n    """More."""\n\n    return (x + 1)\n') == plain
    assert shape("def f(x):\n    return x + 2\n") != plain


def test_dependencies_are_all_modules_that_are_imported_directly_or_not() -> None:
    found = {str(path.relative_to(ROOT)) for path in records.dependencies("loadtests.perturbed")}
    assert "loadtests/scorecard.py" in found
    assert "autoscaler/planning/plan.py" in found
    assert not any(name.startswith(("tests/", "executors/gateway")) for name in found)


def test_a_changed_input_makes_a_record_old() -> None:
    entry = Entry("test", "page", "A test", measure, inputs=("README.md",))
    without = Entry("test", "page", "A test", measure)
    assert records.code_hash(entry) != records.code_hash(without)


def test_intervals_are_of_students_t() -> None:
    """Mean 2, standard deviation 1, three values: 4.303 / sqrt(3)."""
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(2.484, abs=0.001)
    assert estimate([5.0]).half_width is None


def test_comparisons_are_in_pairs_of_equal_seeds() -> None:
    assert relative([2.0, 4.0], [1.0, 2.0]).mean == 1.0
    assert relative([2.0, 4.0], [1.0, 2.0]).half_width == 0.0
    assert difference([3.0, 5.0], [1.0, 2.0]).mean == 2.5


def test_the_best_value_is_the_cheapest_that_attains_enough() -> None:
    def figures(usd: float) -> Figures:
        grid = {"0.7": {"usd": usd, "met": 0.99}, "0.9": {"usd": usd - 1.0, "met": 0.96}}
        return {
            "shoal": {"usd": usd - 0.5, "met": 0.98},
            "knative": grid | {"1.1": {"usd": 1.0, "met": 0.5}},
            "skyserve": {"0.8": {"usd": 9.0, "met": 0.7}, "0.6": {"usd": 12.0, "met": 0.8}},
        }

    runs = tuple(SeedRun(seed, 0.0, figures(10.0 + seed)) for seed in (1, 2))
    view = pages.View(ENTRY, Record("test", "", "", "", runs))
    assert (view.best("knative"), view.best("skyserve")) == ("0.9", "0.6")
    assert view.rivals()[:2] == [("knative", "0.7"), ("knative", "0.9")]
    assert view.cheapest() == ("knative", "0.7")
    assert view.undercut_by() == []
