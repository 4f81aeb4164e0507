"""`shoal backtest` from the command line: its report and its refusals.

The figures of the report can be recomputed from the timeline.
"""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest

from autoscaler.simulation.policies.registry import POLICIES
from streams.cli.main import main
from streams.tools.backtest import backtest_runs
from streams.tools.backtest.backtest_runs import prepared
from streams.tools.backtest.demand_options import Demand

CONFIG = Path(__file__).parents[2] / "simulation" / "mini.yaml"
KEYS = {
    "name", "cost_usd", "gpu_hours", "slo_attainment", "goodput_tokens_per_s", "unserved_fraction",
    "reaction_s", "reversals_per_h", "starts", "switches", "regret_to_hindsight",
    "regret_to_oracle",
}  # fmt: skip


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of three minutes with 2 req/s, then 40 req/s, so that some
    requests miss their SLO.
    """
    path = tmp_path_factory.mktemp("trace") / "step.csv"
    times = [i / 2 for i in range(240)] + [120 + i / 40 for i in range(2400)]
    lines = [f"{t:.3f},mini,{400 + i % 900},{60 + i % 200}" for i, t in enumerate(times)]
    path.write_text("\n".join(["time,model,input_tokens,output_tokens", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def report_folder(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    code = main([
        "backtest", "--trace", str(trace), "--config", str(CONFIG), "--jobs", "1",
        "--policies", "shoal,knative,cauchy,fixed-peak,shoal-no-surge,oracle",
        "--json", str(folder / "a.json"), "--report", str(folder / "a.html"), "--no-curves",
        "--timeline", str(folder / "{policy}.jsonl"),
    ])  # fmt: skip
    assert code == 0
    return folder


def test_the_report_names_every_figure_of_every_policy(report_folder: Path) -> None:
    report = json.loads((report_folder / "a.json").read_bytes())
    names = [policy["name"] for policy in report["policies"]]
    assert names[-2:] == ["hindsight", "oracle"]
    assert names[:-2] == ["shoal", "knative", "cauchy", "fixed-peak", "shoal-no-surge"]
    assert all(policy.keys() >= KEYS for policy in report["policies"])
    assert report["models"]["mini"]["requests"] == 2640
    page = (report_folder / "a.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "2640 requests in " in page and "1 model, 1 seed" in page
    assert "its knob was not swept" in page
    for policy in report["policies"][:-2]:
        assert sum(policy["cost_by_cause"].values()) == pytest.approx(policy["cost_usd"])
        missed = 1.0 - policy["slo_attainment"]
        assert sum(policy["missed_by_cause"].values()) == pytest.approx(missed, abs=1e-3)
        assert f"<td>{policy['cost_by_cause']['starts']:.2f}</td>" in page


def test_the_bound_costs_less_than_everyone_and_the_plan_lies_above_it(
    report_folder: Path,
) -> None:
    *policies, plan, bound = json.loads((report_folder / "a.json").read_bytes())["policies"]
    oracle, hindsight = bound["cost_usd"], plan["cost_usd"]
    assert 0.0 < oracle <= plan["lower_bound_usd"] <= hindsight
    assert oracle < min(policy["cost_usd"] for policy in policies)
    for policy in (*policies, plan):
        usd = policy["cost_usd"]
        assert policy["regret_to_oracle"] == pytest.approx(usd / oracle - 1.0)
        assert policy["regret_to_hindsight"] == pytest.approx(usd / hindsight - 1.0)
    page = (report_folder / "a.html").read_text()
    assert "<td>hindsight</td>" in page and "<td>oracle</td>" in page


@pytest.mark.parametrize("name", ["shoal", "knative", "cauchy", "fixed-peak"])
def test_attainment_and_cost_can_be_recomputed_from_the_timeline(
    report_folder: Path, name: str
) -> None:
    report = json.loads((report_folder / "a.json").read_bytes())
    policy = next(one for one in report["policies"] if one["name"] == name)
    slo = {model: one["slo"] for model, one in report["models"].items()}
    usd = gpu_free_hours = 0.0
    arrived = attained = 0
    for text in (report_folder / f"{name}.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["kind"] == "node":
            hours = (line["to_s"] - line["from_s"]) / 3600.0
            usd += hours * line["usd_per_h"]
            gpu_free_hours += hours
            continue
        arrived += 1
        if line["outcome"] != "served":
            continue
        ttft_ms = 1000.0 * (line["first_token_s"] - line["arrival_s"])
        gaps = line["output_tokens"] - 1
        tpot_ms = 1000.0 * (line["end_s"] - line["first_token_s"]) / gaps if gaps else 0.0
        limits = slo[line["model"]]
        attained += ttft_ms <= limits["ttft_ms"] and tpot_ms <= limits["tpot_ms"]
    assert policy["slo_attainment"] == attained / arrived
    assert policy["cost_usd"] == pytest.approx(usd, rel=1e-3)
    assert policy["gpu_hours"] == pytest.approx(gpu_free_hours)  # one GPU per node here
    assert 0 < attained < arrived  # Both outcomes must occur, or the comparison proves nothing.


def test_the_same_seed_gives_the_same_bytes_on_one_process_and_on_two(
    trace: Path, tmp_path: Path
) -> None:
    for name, jobs in (("one", "1"), ("two", "2")):
        main([
            "backtest", "--trace", str(trace), "--config", str(CONFIG), "--to", "100s",
            "--policies", "knative,skyserve", "--seeds", "2", "--jobs", jobs, "--rate-scale", "1.2",
            "--json", str(tmp_path / f"{name}.json"), "--report", str(tmp_path / f"{name}.html"),
        ])  # fmt: skip
    report = json.loads((tmp_path / "one.json").read_bytes())
    for low, high in (one["intervals"]["cost_usd"] for one in report["curves"]["knative"]):
        assert 0.0 < low <= high
    shares = [one["intervals"]["slo_attainment"] for one in report["curves"]["knative"]]
    assert any(low < high for low, high in shares)
    assert (tmp_path / "one.html").read_text().count('class="span"') >= 4
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_figures_of_several_traces_are_means_for_each_setting(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = trace.read_text().splitlines()
    other, foreign = tmp_path / "half.csv", tmp_path / "foreign.csv"
    other.write_text("\n".join([lines[0], *lines[1::2]]) + "\n")
    foreign.write_text("\n".join([lines[0], "0,someone,10,10", "9,someone,10,10"]) + "\n")
    one = ["backtest", "--config", str(CONFIG), "--policies", "knative", "--jobs", "1", "--trace"]
    for name, traces in (
        ("first", [str(trace)]),
        ("second", [str(other)]),
        ("both", [str(trace), "--also", str(other)]),
    ):
        assert main([*one, *traces, "--json", str(tmp_path / f"{name}.json")]) == 0
    reports = [
        json.loads((tmp_path / f"{name}.json").read_bytes()) for name in ("first", "second", "both")
    ]
    first, second, both = (report["policies"] for report in reports)
    for a, b, mean in zip(first, second, both, strict=True):
        assert mean["cost_usd"] == pytest.approx((a["cost_usd"] + b["cost_usd"]) / 2)
    low, high = both[0]["intervals"]["cost_usd"]
    assert low == pytest.approx(second[0]["cost_usd"]) and high == pytest.approx(
        first[0]["cost_usd"]
    )
    assert reports[2]["also"] == [str(other)]
    assert both[0]["models"]["mini"]["requests"] == 2640 + 1320
    assert reports[2]["models"]["mini"]["requests"] == 2640 + 1320
    assert reports[2]["duration_s"] == reports[0]["duration_s"] + reports[1]["duration_s"]
    assert "3960 requests in 6.0 min in 2 traces, 1 model, 1 seed" in capsys.readouterr().out
    assert main(["backtest", "--trace", str(trace), "--also", str(foreign), "--to", "60s"]) == 2
    error = capsys.readouterr().err
    assert "--also" in error and "someone" in error and error.count("\n") == 1


def test_notes_name_the_trace_unless_they_are_of_all(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "odd.csv"
    odd.write_text("\n".join([*trace.read_text().splitlines()[:50], "25,mini,0,5"]) + "\n")
    one = ["backtest", "--policies", "fixed-peak", "--to", "30s", "--jobs", "1"]
    plain = ["--trace", str(trace), "--also", str(odd), "--config", str(CONFIG)]
    assert main([*one, *plain]) == 0
    notes = [x for x in capsys.readouterr().out.splitlines() if x.startswith("note: ")]
    assert any(note.startswith(f"note: {odd}: ") for note in notes)
    assert not any(note.startswith(f"note: {trace}: ") for note in notes)


def test_arrivals_are_excluded_from_garbage_collection(
    trace: Path,
) -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

    prepared.cache_clear()
    before = gc.get_threshold()
    gc.disable()
    try:
        gone = weakref.ref(Node())
        prepared(Demand((str(trace),), CONFIG, to_s=20.0), 1)
        gc.unfreeze()
        assert gone() is None
        assert gc.get_threshold()[0] == 50_000  # simulated ticks create few reference cycles
    finally:
        gc.enable()
        gc.set_threshold(*before)


def test_a_trace_is_read_once_for_each_seed(trace: Path) -> None:
    prepared.cache_clear()
    main([
        "backtest", "--trace", str(trace), "--config", str(CONFIG), "--to", "30s", "--seeds", "3",
        "--policies", "fixed-peak,knative", "--jobs", "1",
    ])  # fmt: skip
    assert prepared.cache_info().misses == 3


def test_a_run_by_rates_costs_about_the_same(
    trace: Path, report_folder: Path, tmp_path: Path
) -> None:
    """Rates ignore the order of the lengths. tests/unit/simulation tests the attainment."""
    code = main([
        "backtest", "--trace", str(trace), "--config", str(CONFIG), "--jobs", "1", "--fluid",
        "--policies", "shoal,fixed-peak", "--json", str(tmp_path / "a.json"),
    ])  # fmt: skip
    assert code == 0
    one = {p["name"]: p for p in json.loads((report_folder / "a.json").read_bytes())["policies"]}
    for policy in json.loads((tmp_path / "a.json").read_bytes())["policies"]:
        other = one[policy["name"]]
        if policy["simulated"]:
            assert policy["cost_usd"] == pytest.approx(other["cost_usd"], rel=0.1)
        else:
            assert policy["cost_usd"] == pytest.approx(other["cost_usd"], rel=1e-6)


def test_rates_run_policies_that_have_a_period_of_their_own(trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "a.json"
    code = main([
        "backtest", "--trace", str(trace), "--config", str(CONFIG), "--jobs", "1", "--fluid",
        "--policies", "knative,hpa-queue,hpa-utilization,skyserve,fixed-best",
        "--to", "5m", "--json", str(report),
    ])  # fmt: skip
    assert code == 0
    found = {p["name"]: p for p in json.loads(report.read_bytes())["policies"]}
    assert len(found) == 7
    assert found["fixed-best"]["slo_attainment"] >= 0.95
    # The rate steps up, and these rules follow it.
    assert all(found[one]["starts"] > 3 for one in ("knative", "hpa-queue", "hpa-utilization"))


@pytest.mark.parametrize(
    ("scale", "allowed"),
    [
        ("mini", "MODEL=X with X from 0.0001 to 10000"),
        ("mini=x", "MODEL=X with X from 0.0001 to 10000"),
        ("mini=0", "MODEL=X with X from 0.0001 to 10000"),
        ("other=2", "there is no --trace other=FILE"),
    ],
)
def test_a_faulty_scale_is_refused_with_its_value(
    trace: Path, scale: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = f"mini={trace}"
    code = main(["backtest", "--trace", named, "--config", str(CONFIG), "--scale", scale])
    said = capsys.readouterr().err
    assert code == 2
    assert scale in said
    assert allowed in said


def test_a_local_dask_cluster_gives_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    for backend in ("local", "dask"):
        code = main([
            "backtest", "--trace", str(trace), "--config", str(CONFIG), "--to", "60s",
            "--policies", "knative", "--json", str(tmp_path / f"{backend}.json"),
            "--jobs", "1", "--backend", backend,
        ])  # fmt: skip
        assert code == 0
    assert (tmp_path / "dask.json").read_bytes() == (tmp_path / "local.json").read_bytes()


@pytest.mark.parametrize("tokens", ["1000000,10", "100,1000000"])
def test_a_refused_huge_request_changes_no_other_figure(
    tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gateway refuses this request, so its length does not affect the choice of instances."""
    path = tmp_path / "outlier.csv"
    rows = [f"{at},mini,100,10" for at in range(0, 60, 2)]
    path.write_text(
        "\n".join(["time,model,input_tokens,output_tokens", *rows, f"61,mini,{tokens}"])
    )
    code = main([
        "backtest", "--trace", str(path), "--config", str(CONFIG), "--policies",
        "shoal,knative,fixed-peak", "--jobs", "2", "--json", str(tmp_path / "out.json"),
    ])  # fmt: skip
    assert code == 0
    assert "1 request is longer than its model's max_len" in capsys.readouterr().out
    for policy in json.loads((tmp_path / "out.json").read_bytes())["policies"]:
        if policy["simulated"]:
            assert policy["slo_attainment"] == pytest.approx(30 / 31)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policies", "unknown"], "--policies: 'unknown' is not allowed"),
        (["--rate-scale", "0"], "--rate-scale"),
        (["--from", "5"], "--from"),
        (["--from", "2m", "--to", "1m"], "not before"),
        (["--from", "2h"], "no requests from 7200 s on"),
        (["--seeds", "0"], "--seeds"),
        (["--jobs", "-1"], "--jobs: -1 is not allowed; allowed: a whole number from 1 to 4096"),
        (["--fluid", "--inside", "prefix"], "--inside: with --fluid there are no single requests"),
        (["--since", "3d"], "--since: only with --prometheus"),
        (["--trace", "mini=a.csv", "mini=a.csv"], "--trace mini=a.csv: is given twice"),
        (["--json", "/nowhere/else/a.json"], "/nowhere/else does not exist"),
        (["--json", "/"], "/: is a folder"),
        (["--report", "/"], "/: is a folder"),
        (["--timeline", "/"], "/: is a folder"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["--supply", "/nowhere.csv"], "expected a CSV with the columns time, pool"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    trace: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["backtest", "--trace", str(trace), "--config", str(CONFIG), *options]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("option", ["--json", "--report", "--timeline"])
def test_a_full_disk_gives_one_error_line(
    trace: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([
        "backtest", "--trace", str(trace), "--config", str(CONFIG), "--to", "60s", "--no-curves",
        "--policies", "fixed-peak", "--jobs", "1", option, "/dev/full",
    ])  # fmt: skip
    assert code == 2
    said = capsys.readouterr().err
    assert said == "shoal: /dev/full: cannot be written (No space left on device)\n"


def test_a_run_that_is_known_is_not_repeated(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep for the curves contains the run at the default knob, and two factors of the peak
    that give one fleet."""
    simulated: list[object] = []
    plain_simulate = backtest_runs.simulate
    monkeypatch.setattr(
        backtest_runs, "simulate", lambda *args: simulated.append(args) or plain_simulate(*args)
    )
    backtest_runs._kept.clear()
    code = main([
        "backtest", "--trace", str(trace), "--config", str(CONFIG), "--to", "2m", "--jobs", "1",
        "--policies", "fixed-peak,skyserve", "--report", str(tmp_path / "a.html"),
    ])  # fmt: skip
    assert code == 0
    knobs = len(POLICIES["fixed-peak"].values) + len(POLICIES["skyserve"].values)
    assert len(simulated) < knobs
