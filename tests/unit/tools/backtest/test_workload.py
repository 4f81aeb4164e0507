"""Trace files as workloads: models, slices, rates, unusual rows, and refusals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from autoscaler.serving.routing_policies import WithinCombo
from streams.files.user_errors import UserError
from streams.tools.backtest import backtest_demand
from streams.tools.backtest.backtest_demand import load_workload
from streams.tools.backtest.demand_options import Demand
from streams.tools.replay.servegen import load_representatives, load_servegen
from streams.tools.replay.traces import parse_columns

CONFIG = Path(__file__).parents[2] / "simulation" / "mini.yaml"


def plain(folder: Path, rows: list[str], header: str = "time,model,input_tokens,output_tokens",
          name: str = "trace.csv") -> str:  # fmt: skip
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def rows(count: int, every_s: float = 1.0, model: str = "mini") -> list[str]:
    return [f"{i * every_s},{model},100,20" for i in range(count)]


def test_a_plain_csv_names_its_models(tmp_path: Path) -> None:
    trace = plain(tmp_path, ["3,mini,10,5", "1.5,mini,20,6", "1.5,mini,30,7"])
    arrivals = load_workload(Demand((trace,), CONFIG), 1).scenario.arrivals
    assert [(a.at_s, a.input_tokens) for a in arrivals] == [(1.5, 20), (1.5, 30), (3.0, 10)]


@pytest.mark.parametrize("silent", ["servegen", "csv"])
def test_a_model_that_is_silent_in_the_slice_is_left_out(tmp_path: Path, silent: str) -> None:
    """Its trace has requests, but none of them between --from and --to."""
    busy = plain(tmp_path, [f"{i},10,5" for i in range(100)], "time,input_tokens,output_tokens")
    late = plain(tmp_path, ["500,10,5"], "time,input_tokens,output_tokens", "late.csv")
    if silent == "servegen":
        late = str(servegen(tmp_path, ["0,0.0,1", "600,5.0,1"]))
    config = two_models(tmp_path)
    demand = Demand((f"mini={busy}", f"other={late}"), config, to_s=90.0)
    found = load_workload(demand, 1)
    assert [service.model for service in found.scenario.cluster.services] == ["mini"]
    assert len(found.scenario.arrivals) == 90
    assert "left out, no request is for them: other" in found.notes
    with pytest.raises(UserError, match="no requests"):
        load_workload(Demand((f"other={late}",), config, to_s=90.0), 1)
    with pytest.raises(UserError, match="models are mini, other"):
        load_workload(Demand((f"mini={busy}", f"absent={late}"), config, to_s=90.0), 1)


def two_models(folder: Path) -> Path:
    """CONFIG with a second model like its only one."""
    head, models, body = CONFIG.read_text().partition("models:\n  mini:\n")
    path = folder / "two.yaml"
    path.write_text(f"{head}{models}{body}  other:\n{body}")
    return path


def test_columns_come_in_any_order_and_dates_count_from_the_first(tmp_path: Path) -> None:
    trace = plain(
        tmp_path,
        ["7,mini,2024-05-01 10:00:02,3", "9,mini,2024-05-01 10:00:00.5,4"],
        "input_tokens,model,time,output_tokens",
    )
    arrivals = load_workload(Demand((trace,), CONFIG), 1).scenario.arrivals
    assert [(a.at_s, a.output_tokens) for a in arrivals] == [(0.0, 4), (1.5, 3)]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("time,model,input_tokens,output_tokens", "{},mini,3,4"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "{},3,4"),
    ],
)
def test_dates_with_an_offset_are_exact_times(tmp_path: Path, header: str, row: str) -> None:
    """Clocks are set back that night, so one hour occurs twice."""
    dates = ["2023-10-29T02:59:58+02:00", "2023-10-29T02:00:01+01:00", "2023-10-29T01:00:03Z"]
    trace = plain(tmp_path, [row.format(date) for date in dates], header)
    arrivals = load_workload(Demand((trace,), CONFIG), 1).scenario.arrivals
    assert [a.at_s for a in arrivals] == [0.0, 3.0, 5.0]


def test_a_trace_of_more_than_a_year_is_refused_with_its_ends(tmp_path: Path) -> None:
    trace = plain(tmp_path, ["5,mini,1,1", "9e7,mini,1,1"])
    with pytest.raises(UserError, match="requests from 0 s to 90000000 s; allowed: 366 days"):
        load_workload(Demand((trace,), CONFIG), 1)


def test_without_a_configuration_unknown_models_get_one(tmp_path: Path) -> None:
    trace = plain(tmp_path, [*rows(30, model="big"), *rows(60, model="small")])
    found = load_workload(Demand((trace,)), 1)
    assert {s.model for s in found.scenario.cluster.services} == {"big", "small"}
    assert any("small is run as openai/gpt-oss-20b" in note for note in found.notes)


def test_several_traces_are_several_models(tmp_path: Path) -> None:
    head = "timestamp_ms,input_tokens,output_tokens"
    one = plain(tmp_path, ["0,11,1", "10,11,1"], head, "one.csv")
    two = plain(tmp_path, ["5,22,2"], head, "two.csv")
    found = load_workload(Demand((f"code={one}", two)), 1).scenario
    assert [(a.model, a.input_tokens) for a in found.arrivals] == [
        ("code", 11), ("chat", 22), ("code", 11),
    ]  # fmt: skip


def test_a_slice_starts_at_zero_and_lasts_as_long_as_it_is(tmp_path: Path) -> None:
    trace = plain(tmp_path, rows(100))
    found = load_workload(Demand((trace,), CONFIG, from_s=20.0, to_s=50.0), 1).scenario
    assert (len(found.arrivals), found.arrivals[0].at_s, found.duration_s) == (30, 0.0, 30.0)


@pytest.mark.parametrize("scale", [0.25, 1.5, 3.0])
def test_scaled_rates_keep_their_course(tmp_path: Path, scale: float) -> None:
    trace = plain(tmp_path, [*rows(1000, 0.1), *[f"{100 + i},mini,100,20" for i in range(1000)]])
    found = load_workload(Demand((trace,), CONFIG, rate_scale=scale), 1).scenario.arrivals
    assert len(found) == pytest.approx(2000 * scale, rel=0.06)
    early = sum(a.at_s < 100.0 for a in found)
    assert early == pytest.approx(1000 * scale, rel=0.1)
    assert [a.at_s for a in found] == sorted(a.at_s for a in found)


def test_unusual_requests_are_kept_and_reported(tmp_path: Path) -> None:
    """The trace has a gap of an hour, prompts of 0 tokens, equal times, and one prompt of a million
    tokens.
    """
    trace = plain(tmp_path, ["0,mini,0,5", "0,mini,9,0", "3600,mini,1000000,5", "3600,mini,8,8"])
    found = load_workload(Demand((trace,), CONFIG), 1)
    assert [a.input_tokens for a in found.scenario.arrivals] == [1, 9, 1_000_000, 8]
    assert [n.split(" request ")[0] for n in found.notes if " request " in n][:3] == ["1", "1", "1"]


def test_requests_come_in_any_order_and_several_at_once(tmp_path: Path) -> None:
    trace = plain(tmp_path, ["9,mini,3,1", "0,mini,1,1", "9,mini,4,1", "2,mini,2,1"])
    found = load_workload(Demand((trace,), CONFIG), 1).scenario.arrivals
    assert [(a.at_s, a.input_tokens) for a in found] == [(0, 1), (2, 2), (9, 3), (9, 4)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("x,mini,1,1", "time: 'x'"),
        ("nan,mini,1,1", "rows left out: 1 without a time"),
        ("-1,mini,1,1", "time: '-1'"),
        ("1,mini,-5,1", "input_tokens: '-5'"),
        ("1,mini,12.5,1", "allowed: a whole number from 0 to"),
        ("1,mini,1,1e99", "output_tokens: '1e99'"),
        ("1,,1,1", "model: is empty"),
        ("1,mini,1", "3 columns, expected 4"),
        ("1,else,1,1", "model 'else' is not configured; models: mini"),
    ],
)
def test_bad_rows_are_refused_in_one_line(tmp_path: Path, row: str, said: str) -> None:
    trace = plain(tmp_path, [row])
    with pytest.raises(UserError) as error:
        load_workload(Demand((trace,), CONFIG), 1)
    assert said in str(error.value)
    assert trace in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "\n\n", "time,model,input_tokens,output_tokens\n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "empty.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"empty|no requests"):
        load_workload(Demand((str(path),), CONFIG), 1)


def test_more_traces_than_models_are_refused(tmp_path: Path) -> None:
    head = "timestamp_ms,input_tokens,output_tokens"
    files = [plain(tmp_path, ["0,1,1"], head, f"{i}.csv") for i in range(2)]
    with pytest.raises(UserError, match="2 traces for 1 models"):
        load_workload(Demand(tuple(files), CONFIG), 1)
    with pytest.raises(UserError, match="models are mini"):
        load_workload(Demand((f"nobody={files[0]}",), CONFIG), 1)


def servegen(folder: Path, rates: list[str], name: str = "w_rate_10min.csv") -> Path:
    path = folder / name
    head = "window_start_s,rate_rps,active_clients"
    if "clients" in name:
        head = "client,window_start_s,rate_rps,cv,pattern,arg1,arg2"
    path.write_text("\n".join([head, *rates]) + "\n")
    law = {"input_tokens": {"100": 0.5, "300": 0.5}, "output_tokens": {"10": 1.0}}
    beside = f"{name.partition('_')[0]}_token_hist.json.gz"
    (folder / beside).write_bytes(json.dumps(law).encode())
    return path


def test_servegen_windows_become_requests(tmp_path: Path) -> None:
    """A missing window has the rate of the window before it. Lengths follow the histogram next to
    the file.
    """
    path = servegen(tmp_path, ["0,2.0,1", "600,4.0,1", "1200,,1", "1800,1.0,1"])
    trace = load_servegen(path, 0.0, 2400.0, 1.0, np.random.default_rng(1))
    at_s = np.array(trace.arrivals_ms) / 1000.0
    found = np.histogram(at_s, [0, 600, 1200, 1800, 2400])[0] / 600.0
    assert found == pytest.approx([2.0, 4.0, 4.0, 1.0], rel=0.15)
    assert set(trace.input_tokens) == {100, 300}
    part = load_servegen(path, 600.0, 1200.0, 0.5, np.random.default_rng(1))
    assert len(part.arrivals_ms) == pytest.approx(1200, rel=0.15)
    assert part.arrivals_ms[-1] < 600_000


@pytest.mark.parametrize(
    "law",
    [{}, {"10": 0.0, "20": 0.0}, {"10": -1.0, "20": 2.0}, {"10": 1e308, "20": 1e308}, {"nan": 1.0},
     {"inf": 1.0}, [10, 20], {"ten": 1.0}],
)  # fmt: skip
def test_an_invalid_histogram_is_refused(tmp_path: Path, law: object) -> None:
    path = servegen(tmp_path, ["0,2.0,1", "600,2.0,1"])
    laws = {"input_tokens": law, "output_tokens": {"5": 1.0}}
    (tmp_path / "w_token_hist.json.gz").write_bytes(json.dumps(laws).encode())
    with pytest.raises(UserError, match="not a histogram of input_tokens, output_tokens"):
        load_servegen(path, 0.0, 600.0, 1.0, np.random.default_rng(1))


def test_few_arrivals_can_stand_for_many_and_follow_the_rate_evenly(tmp_path: Path) -> None:
    path = servegen(tmp_path, ["0,200.0,1", "600,400.0,1"])
    span = 0.0, 1200.0, 1.0, np.random.default_rng(1)
    trace, weight = load_representatives(path, *span, most=900)
    assert (len(trace.arrivals_ms), weight) == (900, 400.0)
    counts = np.histogram(np.array(trace.arrivals_ms) / 1000.0, np.arange(0, 1201, 60))[0]
    assert counts.tolist() == [30] * 10 + [60] * 10
    assert load_representatives(path, *span, most=10**9)[1] == 1.0


def test_lengths_of_weighted_arrivals_follow_their_distribution_evenly(tmp_path: Path) -> None:
    """A few hundred consecutive arrivals have the means of the distribution. Inputs and outputs are
    independent, and each seed starts at another position.
    """
    path = servegen(tmp_path, ["0,200.0,1"])
    law = {"input_tokens": {"100": 0.9, "2000": 0.1}, "output_tokens": {"10": 0.5, "90": 0.5}}
    (tmp_path / "w_token_hist.json.gz").write_bytes(json.dumps(law).encode())
    one, other = (
        load_representatives(path, 0.0, 600.0, 1.0, np.random.default_rng(seed), most=4000)[0]
        for seed in (1, 2)
    )
    inputs = np.array(one.input_tokens).reshape(-1, 400)
    outputs = np.array(one.output_tokens).reshape(-1, 400)
    assert inputs.mean(axis=1) == pytest.approx(
        290.0, rel=0.03
    )  # Independent draws would differ by 10%.
    assert outputs.mean(axis=1) == pytest.approx(50.0, rel=0.03)
    assert (inputs * outputs).mean(axis=1) == pytest.approx(290.0 * 50.0, rel=0.1)
    assert one.input_tokens != other.input_tokens


@pytest.mark.parametrize("pattern", ["Gamma", "Weibull"])
def test_servegen_clients_have_their_stated_burstiness(tmp_path: Path, pattern: str) -> None:
    lines = [f"0,{600 * i},5.0,3.0,{pattern},0,0" for i in range(60)]
    path = servegen(tmp_path, lines, "w_clients_10min.csv")
    trace = load_servegen(path, 0.0, 36_000.0, 1.0, np.random.default_rng(2))
    counts = np.histogram(np.array(trace.arrivals_ms) / 1000.0, np.arange(0, 36_001, 100))[0]
    assert counts.mean() == pytest.approx(500.0, rel=0.1)
    assert 5.0 < counts.var() / counts.mean() < 14.0  # 9 in long spans


def test_servegen_without_lengths_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w_rate_10min.csv"
    path.write_text("window_start_s,rate_rps\n0,1\n")
    with pytest.raises(UserError, match="lengths are missing"):
        load_servegen(path, 0.0, 600.0, 1.0, np.random.default_rng(1))


def spoken(folder: Path, name: str) -> str:
    """The path of a trace with 40 sessions of three turns."""
    path = folder / name
    turns = [(100.0 * s, s, 0) for s in range(40)] + [
        (100.0 * s + 10 * t, s, t) for s in range(40) for t in (1, 2)
    ]
    path.write_text(
        "".join(
            json.dumps({"session_id": s, "input_length": 100 + t, "output_length": 20}
                       | ({"timestamp": 1000 * at} if not t else {"delay": 2000})) + "\n"
            for at, s, t in turns
        )
    )  # fmt: skip
    return str(path)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.5])
def test_sessions_stay_whole_when_rates_are_scaled(tmp_path: Path, scale: float) -> None:
    workload = load_workload(Demand((spoken(tmp_path, "a.jsonl"),), CONFIG, scale), 1)
    sessions: dict[int | None, list[tuple[int, float | None]]] = {}
    for one in workload.scenario.arrivals:
        sessions.setdefault(one.session, []).append((one.input_tokens, one.delay_s))
    assert None not in sessions
    assert {len(turns) for turns in sessions.values()} == {3}
    assert abs(len(sessions) - 40 * scale) < 13  # two standard deviations of 40 draws
    assert [delay for _, delay in sorted(sessions[min(filter(None, sessions))])] == [None, 2.0, 2.0]
    asked = "each turn waits for the answer before it"
    assert any(asked in note for note in workload.notes)


def test_sessions_of_two_traces_do_not_wait_for_each_other(tmp_path: Path) -> None:
    traces = tuple(f"mini={spoken(tmp_path, name)}" for name in ("a.jsonl", "b.jsonl"))
    arrivals = load_workload(Demand(traces, CONFIG), 1).scenario.arrivals
    assert len({one.session for one in arrivals}) == 80


def test_columns_named_by_the_user_take_precedence(tmp_path: Path) -> None:
    trace = plain(tmp_path, ["3,10,5", "7,20,6"], "when,read,wrote")
    columns = parse_columns("time=when:ms,input=read,output=wrote")
    workload = load_workload(Demand((trace,), CONFIG, columns=columns), 1)
    assert [a.at_s for a in workload.scenario.arrivals] == [0.003, 0.007]
    assert "read as columns; when: milliseconds" in workload.notes


def test_each_of_several_servegen_records_has_the_weight_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backtest_demand, "_MOST_FLUID", 2000)
    heavy = servegen(tmp_path, ["0,20.0,1", "600,20.0,1"], "heavy_rate_10min.csv")
    light = servegen(tmp_path, ["0,0.5,1", "600,0.5,1"], "light_rate_10min.csv")
    demand = Demand((f"code={heavy}", f"mini={light}"), fluid=True, scales=(("code", 2.0),))
    found = load_workload(demand, 1).scenario
    assert found.weights == pytest.approx({"code": 48.0, "mini": 1.0})
    counts = Counter(one.model for one in found.arrivals)
    assert counts["code"] == pytest.approx(1000, abs=1)
    assert counts["mini"] == pytest.approx(600, rel=0.2)
    assert found.requests == pytest.approx(48_600, rel=0.01)
    by_model = {service.model: service.req_per_s for service in found.cluster.services}
    assert by_model["code"] == pytest.approx(40.0, rel=0.01)


def test_clients_of_a_servegen_record_are_models(tmp_path: Path) -> None:
    lines = [f"{client},0,{rate},1.0,Gamma,1,1" for client, rate in ((0, 1.0), (1, 2.0), (4, 3.0))]
    path = servegen(tmp_path, lines, "w_clients_10min.csv")
    found = load_workload(Demand((f"code={path}#0", f"mini={path}#1-1,4")), 1).scenario
    counts = Counter(one.model for one in found.arrivals)
    assert counts["code"] == pytest.approx(600, rel=0.15)
    assert counts["mini"] == pytest.approx(3000, rel=0.15)


@pytest.mark.parametrize(
    ("clients", "error"),
    [("2", "has no client 2"), ("1-", "'1-' is not allowed"), ("3-1", "'3-1' is not allowed")],
)
def test_unknown_clients_of_a_servegen_record_are_refused(
    tmp_path: Path, clients: str, error: str
) -> None:
    path = servegen(tmp_path, ["0,0,1.0,1.0,Gamma,1,1"], "w_clients_10min.csv")
    with pytest.raises(UserError, match=error):
        load_workload(Demand((f"mini={path}#{clients}",)), 1)


def test_clients_of_another_trace_are_refused(tmp_path: Path) -> None:
    rates = servegen(tmp_path, ["0,1.0,1"])
    with pytest.raises(UserError, match="names no clients"):
        load_workload(Demand((f"mini={rates}#0",)), 1)
    trace = plain(tmp_path, rows(3))
    with pytest.raises(UserError, match="only the clients of a ServeGen record"):
        load_workload(Demand((f"mini={trace}#0",), CONFIG), 1)


def test_block_hashes_give_the_engines_prefix_caches(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, %d]}'
    trace.write_text("\n".join(row % (1000 * at, 3 + at) for at in range(4)))
    workload = load_workload(Demand((f"mini={trace}",), CONFIG, rate_scale=2.0), 1)
    assert workload.scenario.block_tokens == {"mini": 512}
    # Copies that raise the rate share no blocks with the originals.
    assert Counter(tuple(a.blocks) for a in workload.scenario.arrivals) == {
        (1, 2): 4,
        (1 << 40 ^ 1, 1 << 40 ^ 2): 4,
    }
    assert any("one endless cache" in n for n in workload.notes)
    demand = Demand((f"mini={trace}",), CONFIG, inside=WithinCombo.PREFIX)
    assert load_workload(demand, 1).scenario.limits.policy.inside is WithinCombo.PREFIX
    plain_trace = plain(tmp_path, rows(3))
    other = load_workload(Demand((plain_trace,), CONFIG), 1)
    assert other.scenario.block_tokens == {}
    assert "the trace has no block hashes: no prefix cache is simulated" in other.notes
