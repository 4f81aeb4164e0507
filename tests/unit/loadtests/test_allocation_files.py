"""The files and the command line of the allocation benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadtests import allocation_bench, allocation_generate


def made(folder: Path, *more: str) -> Path:
    """The path of a small generated problem instance. more: further options of the generator."""
    path = folder / "instance.npz"
    words = ["--models", "2", "--regions", "2", "--configs", "8", "--seed", "3"]
    words += ["--templates", "80", "--out", str(path), *more]
    assert allocation_generate.main(words) == 0
    return path


def test_the_plan_has_the_format_of_the_checker(tmp_path: Path) -> None:
    """Its cost and its served demand match the problem instance."""
    path, out = made(tmp_path), tmp_path / "plan.json"
    assert allocation_bench.main([str(path), "--out", str(out)]) == 0
    plan = json.loads(out.read_text())
    with np.load(path) as instance:
        price, K = instance["price_usd_per_h"], float(instance["K"])
        cost, served = 0.0, np.zeros(4)
        for row in plan["instances"]:
            k, i = row["group"], row["template"]
            nodes = instance[f"nodes_{k}"][i].astype(float)
            cost += row["count"] * float(nodes @ price[row["region"]]) * (1 + K)
            served[k] += row["count"] * instance[f"throughput_{k}"][i]
        assert (served >= instance["demand_req_per_s"] * (1 - 1e-6)).all()
        assert np.shape(plan["mu"]) == price.shape
    assert cost == pytest.approx(plan["cost_usd_per_h"])
    assert plan["lower_bound_usd_per_h"] == pytest.approx(cost)
    assert plan["served_fraction_upper_bound"] == 1.0
    assert plan["shortfall_req_per_s"] == [0.0] * 4
    assert plan["cpu_seconds"] > 0 and plan["seconds"] > 0


def test_started_and_stopped_instances_are_counted_for_a_running_fleet(tmp_path: Path) -> None:
    """The options are --warm and --scale-demand."""
    path, out, next_out = made(tmp_path), tmp_path / "plan.json", tmp_path / "next.json"
    assert allocation_bench.main([str(path), "--out", str(out)]) == 0
    words = [str(path), "--warm", str(out), "--scale-demand", "1.3", "--out", str(next_out)]
    assert allocation_bench.main(words) == 0
    before, after = json.loads(out.read_text()), json.loads(next_out.read_text())
    running = {(r["group"], r["region"], r["template"]): r["count"] for r in before["instances"]}
    now = {(r["group"], r["region"], r["template"]): r["count"] for r in after["instances"]}
    keys = running.keys() | now.keys()
    assert after["instances_started"] == sum(
        max(0, now.get(k, 0) - running.get(k, 0)) for k in keys
    )
    assert after["instances_stopped"] == sum(
        max(0, running.get(k, 0) - now.get(k, 0)) for k in keys
    )
    assert after["instances_running"] == sum(running.values())
    assert after["cost_usd_per_h"] <= after["cost_if_all_started_usd_per_h"]


def test_the_same_seed_makes_the_same_problem(tmp_path: Path) -> None:
    """`--scarcity` changes only the availability."""
    with np.load(made(tmp_path)) as first:
        ample = {name: first[name] for name in first.files}
    with np.load(made(tmp_path)) as again:
        assert all(np.array_equal(ample[name], again[name]) for name in ample)
    with np.load(made(tmp_path, "--scarcity", "1")) as scarce:
        differ = [n for n in ample if not np.array_equal(ample[n], scarce[n])]
        assert differ == ["available_nodes"]
        assert 0 < int(scarce["available_nodes"].sum()) < 10_000


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"price_usd_per_h": np.array([[np.nan] * 8] * 2)}, "price_usd_per_h"),
        ({"demand_req_per_s": np.array([1.0, -1.0, 1.0, 1.0])}, "demand_req_per_s"),
        ({"throughput_1": None}, "throughput_1"),
        ({"available_nodes": None}, "available_nodes"),
        ({"nodes_0": np.array([["a"]])}, "nodes_0"),
    ],
)
def test_a_broken_problem_file_gives_one_clear_line_and_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    word: str,
) -> None:
    """Faults are NaN prices, negative demand, missing arrays, and text instead of numbers."""
    path = made(tmp_path)
    with np.load(path) as good:
        arrays = {name: good[name] for name in good.files}
    arrays |= change
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})
    capsys.readouterr()
    assert allocation_bench.main([str(path), "--out", str(tmp_path / "plan.json")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert word in said[0]


def test_a_file_that_is_no_problem_is_refused(tmp_path: Path) -> None:
    """The file is no archive, is missing, or is a plan that names a missing template."""
    text = tmp_path / "x.npz"
    text.write_text("hello")
    out = str(tmp_path / "plan.json")
    assert allocation_bench.main([str(text), "--out", out]) == 2
    assert allocation_bench.main([str(tmp_path / "none.npz"), "--out", out]) == 2
    path, warm = made(tmp_path), tmp_path / "warm.json"
    row = {"group": 0, "region": 0, "template": 10**6, "count": 1}
    warm.write_text(json.dumps({"instances": [row]}))
    assert allocation_bench.main([str(path), "--out", out, "--warm", str(warm)]) == 2
