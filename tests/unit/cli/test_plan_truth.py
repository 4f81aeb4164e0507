"""`shoal plan` states what a plan provides and which demands are impossible, in defined words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from streams.cli.main import main

HEAD = "defaults: {utilization: 0.8, spot: 0.5, max_len: 8192, capacity: predicted}\n"
L40S = "{gpu: L40S, per_node: 1, max: %d, price: 1.8, spot_price: 0.8}"
MINI = """
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 1s, tpot: 50ms}
"""


class Planned:
    """One run of `shoal plan`: exit code, text and JSON."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
        self.folder, self.capsys = folder, capsys
        self.path = folder / "shoal.yaml"
        self.path.write_text(text)

    def text(self, *more: str) -> tuple[int, str]:
        code = main(["plan", "--config", str(self.path), *more])
        return code, self.capsys.readouterr().out

    def json(self, *more: str) -> tuple[int, dict[str, Any]]:
        code, out = self.text("--json", *more)
        return code, json.loads(out)


def declared(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pools: str,
    models: str,
    more: str = "",
) -> Planned:
    return Planned(tmp_path, capsys, f"{HEAD}{more}regions:\n  us:\n{pools}\nmodels:\n{models}\n")


def mini(workload: str, more: str = "", name: str = "mini") -> str:
    return f"  {name}:{MINI}    workload: {{input: 1155, output: 211, {workload}}}\n{more}"


def flat(out: str) -> str:
    """`out` in one line: the text wraps at 100 columns."""
    return " ".join(out.split())


def nodes(found: dict[str, Any]) -> dict[str, int]:
    return {node["pool"]: node["proposed"] for node in found["nodes"]}


# max limits instances in every market


@pytest.mark.parametrize("strategy", ["shoal", "cauchy", "mc-lp", "homo"])
def test_max_limits_the_nodes_of_both_markets_together(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = declared(tmp_path, capsys, f"    l40s: {L40S % 2}", mini("req_per_s: 300"))
    code, found = asked.json("--strategy", strategy, "--no-explain")
    assert code == 3
    assert sum(nodes(found).values()) <= 2
    if strategy == "shoal":
        assert sum(nodes(found).values()) == 2
        text = "all 2 nodes of us/l40s in use, on-demand and spot together"
        assert text in [binding["detail"] for binding in found["binding"]]


def test_max_spot_limits_the_spot_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = "{gpu: L40S, per_node: 1, max: 6, max_spot: 1, price: 1.8, spot_price: 0.2}"
    asked = declared(
        tmp_path, capsys, f"    l40s: {pool}", mini("req_per_s: 15", "    spot: 1.0\n")
    )
    _, found = asked.json("--no-explain")
    assert nodes(found)["us/l40s/spot"] == 1
    assert nodes(found)["us/l40s/on-demand"] >= 1


def test_a_suggested_larger_max_counts_for_both_markets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = declared(tmp_path, capsys, f"    l40s: {L40S % 2}", mini("req_per_s: 40"))
    _, found = asked.json()
    reliefs = [r for r in found["relief"] if r["kind"] == "nodes"]
    assert reliefs
    assert reliefs[0]["serves_req_per_s"] > 0.0


# SLOs that no hardware meets


def test_an_slo_that_no_hardware_meets_adds_no_hardware(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = "    h100: {gpu: H100, per_node: 1, max: 4, price: 4}"
    model = mini("req_per_s: 9", name="llama8").replace("tpot: 50ms", "tpot: 1ms")
    asked = declared(tmp_path, capsys, pool, model)
    code, out = asked.text()
    assert code == 3
    said = re.search(r"llama8: TPOT 1 ms cannot be met; fastest here (\S+) ms on H100", out)
    assert said
    assert "llama8: 9 of 9 req/s cannot be served" in out
    code, found = asked.json()
    assert code == 3
    assert found["demand_served"] is False
    assert found["shortfall_req_per_s"] == {"llama8": 9.0}
    assert found["cost_usd_per_h"] == 0.0
    assert nodes(found) == {"us/h100/on-demand": 0}
    # The stated figure is exact: an SLO slightly above it can be met, one slightly below cannot.
    for factor, expected in ((1.05, 0), (0.95, 3)):
        limit = f"tpot: {float(said[1]) * factor:.3f}ms"
        asked.path.write_text(asked.path.read_text().replace("req_per_s: 9", "req_per_s: 0.01"))
        asked.path.write_text(re.sub(r"tpot: [\d.]+ms", limit, asked.path.read_text()))
        assert asked.text("--no-explain")[0] == expected


def test_an_impossible_slo_of_one_model_takes_nothing_from_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = mini("req_per_s: 9", name="late").replace("ttft: 1s", "ttft: 1ms")
    asked = declared(tmp_path, capsys, f"    l40s: {L40S % 8}", mini("req_per_s: 5") + late)
    code, out = asked.text()
    assert code == 3
    assert "late: TTFT 1 ms cannot be met; fastest here" in out
    assert "mini: " not in "".join(line for line in out.splitlines() if "cannot" in line)
    assert "no plan serves more than" not in out


def test_a_plan_that_serves_everything_ends_with_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = declared(tmp_path, capsys, f"    l40s: {L40S % 8}", mini("req_per_s: 5"))
    code, found = asked.json()
    assert (code, found["demand_served"]) == (0, True)


# Wording of the output


def test_no_optimality_of_100_percent_is_printed_for_an_unserved_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    big = mini("req_per_s: 1", name="big").replace("Llama-3.1-8B", "Llama-3.3-70B")
    asked = declared(tmp_path, capsys, f"    l40s: {L40S % 8}", mini("req_per_s: 5") + big)
    code, out = asked.text()
    assert code == 3
    assert "100.0%" not in out


def test_too_little_memory_is_named_with_its_size_and_a_gpu_that_would_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    big = mini("req_per_s: 1", name="big").replace("Llama-3.1-8B", "Llama-3.3-70B")
    asked = declared(tmp_path, capsys, "    l4: {gpu: L4, per_node: 4, max: 4, price: 3}", big)
    _, out = asked.text()
    said = flat(out)
    assert "big: no slice of its pools holds it: 141.1 GB of weights" in said
    assert "an engine with --quantization=fp8 or 4xL40S would fit" in said
    _, found = asked.json()
    reasons = found["models"]["big"]["bound_by"]
    assert len(reasons) == 1
    assert "GB of weights" in reasons[0]


def test_too_little_kv_memory_is_named_with_its_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A 32B model in BF16 leaves almost no KV-cache memory on an 80 GB GPU."""
    model = mini("req_per_s: 2", "    max_len: 2048\n").replace(
        "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B"
    )
    model = model.replace("ttft: 1s, tpot: 50ms", "ttft: 30s, tpot: 400ms")
    asked = declared(tmp_path, capsys, "    h: {gpu: H100, per_node: 1, max: 9, price: 4}", model)
    _, found = asked.json()
    reasons = found["models"]["mini"]["bound_by"]
    assert any(
        re.match(r"KV memory \(\d+ GB next to 66 GB of weights on 1xH100", r) for r in reasons
    )


def test_a_binding_budget_is_named_with_the_cost_of_the_whole_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = declared(
        tmp_path, capsys, f"    l40s: {L40S % 30}", mini("req_per_s: 60"), "policy: {budget: 5}\n"
    )
    code, out = asked.text()
    assert code == 3
    assert "budget 5.00 USD/h" in out
    _, found = asked.json()
    assert found["cost_usd_per_h"] <= 5.0
    assert any("budget 5.00 USD/h" in r for r in found["models"]["mini"]["bound_by"])
    relief = next(r for r in found["relief"] if r["kind"] == "budget")
    enough = float(relief["what"].removeprefix("budget ").removesuffix(" USD/h"))
    asked.path.write_text(asked.path.read_text().replace("budget: 5", f"budget: {enough + 0.01}"))
    assert asked.text("--no-explain")[0] == 0


def test_the_gpu_is_printed_whatever_the_name_of_the_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = declared(
        tmp_path,
        capsys,
        "    h100: {gpu: H200, per_node: 8, nodes: 1, owned: true}",
        mini("req_per_s: 9"),
    )
    _, out = asked.text()
    assert "xH200 us owned" in out
    assert "xh100" not in out


def test_a_count_is_never_printed_next_to_another_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = f"    l4: {{gpu: L4, per_node: 1, max: 9, price: 0.8}}\n    l40s: {L40S % 20}"
    asked = declared(tmp_path, capsys, pools, mini("req_per_s: 60"))
    _, out = asked.text()
    assert not re.search(r"\d \d+ of", flat(out))
    assert re.search(r"\d (instance|group)s? of (\(|\dx)", out)


def test_the_costs_of_all_models_add_up_to_the_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node has four GPUs, and an instance uses some of them: the models on the node pay for all
    four.
    """
    pool = "{gpu: L40S, per_node: 4, max: 9, price: 7.2}"
    asked = declared(
        tmp_path,
        capsys,
        f"    l40s: {pool}",
        mini("req_per_s: 1") + mini("req_per_s: 12", name="other"),
    )
    _, found = asked.json("--no-explain")
    bills = [model["billed_usd_per_h"] for model in found["models"].values()]
    assert sum(bills) == pytest.approx(found["cost_usd_per_h"])
    assert found["cost_usd_per_h"] % 7.2 == pytest.approx(0.0)
    _, out = asked.text("--no-explain")
    column = [float(usd) for _, usd in re.findall(r"^(mini|other): .* ([0-9.]+) USD/h$", out, re.M)]
    assert sum(column) == pytest.approx(found["cost_usd_per_h"], abs=0.02)


@pytest.mark.parametrize("strategy", ["cauchy", "mc-lp", "homo"])
def test_a_baseline_that_breaks_survive_is_marked(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = "    l40s: {gpu: L40S, per_node: 1, max: 20, price: 1.8}"
    asked = declared(tmp_path, capsys, pools, mini("req_per_s: 4", "    survive: one-node\n"))
    code, out = asked.text("--strategy", strategy, "--no-explain")
    assert code == 0
    said = rf"mini: survive one-node is violated by the plan of {strategy}: the loss of a node"
    assert re.search(said, flat(out))
    _, found = asked.json("--strategy", strategy, "--no-explain")
    assert [b["what"] for b in found["broken_promises"]] == ["survive one-node"]
    _, kept = asked.json("--no-explain")
    assert kept["broken_promises"] == []
    assert kept["cost_usd_per_h"] > found["cost_usd_per_h"]


# Declarations of models and pools


def test_disaggregate_false_plans_only_undivided_instances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = "    h100: {gpu: H100, per_node: 8, nodes: 1, owned: true}"
    model = mini("req_per_s: 60").replace("tpot: 50ms", "tpot: 14ms")
    asked = declared(tmp_path, capsys, pools, model)

    def phases() -> set[str]:
        _, found = asked.json("--no-explain")
        names = [combo["combo"] for combo in found["models"]["mini"]["combos"]]
        assert names
        return {"pair" if "+" in name else "whole" for name in names}

    assert phases() == {"pair"}
    asked.path.write_text(asked.path.read_text() + "    disaggregate: false\n")
    assert phases() == {"whole"}


def test_a_slow_network_keeps_prefill_and_decode_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = "    h100: {gpu: H100, per_node: 2, nodes: 8, owned: true}"
    model = mini("req_per_s: 100").replace("tpot: 50ms", "tpot: 14ms")
    asked = declared(tmp_path, capsys, pools, model)
    _, out = asked.text("--no-explain")
    assert "prefill" in out
    assert "us/h100: no network declared; separate prefill and decode assume 200 Gbit/s" in flat(
        out
    )
    for network, apart in (("3200Gbit/s", True), ("1Gbit/s", False)):
        declared_pool = pools.replace(
            "owned: true", f"owned: true, network: {{between: {network}}}"
        )
        asked.path.write_text(f"{HEAD}regions:\n  us:\n{declared_pool}\nmodels:\n{model}")
        _, out = asked.text("--no-explain")
        assert ("prefill" in out) is apart
        assert "no network declared" not in out


def test_the_time_to_get_a_node_is_part_of_start_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = "    l40s: {gpu: L40S, per_node: 1, max: 9, price: 1.8%s}"
    found = {}
    for key in ("", ", provision_time: 4m"):
        asked = declared(tmp_path, capsys, pool % key, mini("req_per_s: 5"))
        _, planned = asked.json("--no-explain")
        found[key] = planned["models"]["mini"]["combos"][0]["start_s"]
    assert found[", provision_time: 4m"] == pytest.approx(found[""] + 240.0)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("max_spot: 9", "max_spot: 9 is not allowed; allowed: a whole number from 0 to 4"),
        ("network: {between: 100}", 'such as "100Gbit/s" or "12.5GB/s"'),
        ("network: {betwen: 1GB/s}", "did you mean between?"),
        ("provision_time: 2d", "up to 12h"),
    ],
)
def test_an_invalid_key_of_a_pool_gives_one_clear_line(
    keys: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = f"    l40s: {{gpu: L40S, max: 4, price: 1.8, spot_price: 0.8, {keys}}}"
    asked = declared(tmp_path, capsys, pool, mini("req_per_s: 5"))
    assert main(["plan", "--config", str(asked.path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_alternative_that_breaks_a_promise_is_not_shown_as_cheaper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only spot nodes would cost less than half, but the declared spot share forbids that."""
    pools = f"    l40s: {L40S % 12}"
    _, out = declared(tmp_path, capsys, pools, mini("req_per_s: 20", "    spot: 25%\n")).text()
    assert re.search(r"spot: breaks spot <= 25%", flat(out))
