"""A user's HorizontalPodAutoscalers and ScaledObjects, as kubectl prints them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.policies.hpa_object import (
    DOWN,
    UP,
    Behavior,
    Form,
    Hpa,
    HpaObject,
    Limit,
    Metric,
    Quantity,
    Select,
)
from autoscaler.simulation.replicas import Signals
from streams.cli.main import main
from streams.files.hpa_manifest import read_objects
from streams.files.user_errors import UserError

CONFIG = Path(__file__).parents[2] / "simulation" / "mini.yaml"
LISTED = """
apiVersion: v1
kind: List
items:
- apiVersion: autoscaling/v2
  kind: HorizontalPodAutoscaler
  metadata: {name: chat-hpa, namespace: llm, uid: 1-2-3}
  spec:
    scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
    minReplicas: 2
    maxReplicas: 9
    metrics:
    - type: Pods
      pods:
        metric: {name: vllm:num_requests_running}
        target: {type: AverageValue, averageValue: "12"}
    - type: External
      external:
        metric: {name: queue}
        target: {type: Value, value: 500m}
    behavior:
      scaleUp:
        stabilizationWindowSeconds: 60
        policies: [{type: Pods, value: 1, periodSeconds: 60}]
      scaleDown: {selectPolicy: Disabled, tolerance: "0.05"}
  status: {currentReplicas: 2}
- apiVersion: keda.sh/v1alpha1
  kind: ScaledObject
  metadata: {name: code-so, annotations: {shoal.dev/model: code}}
  spec:
    scaleTargetRef: {name: code-vllm}
    pollingInterval: 15
    triggers:
    - type: prometheus
      metadata: {query: "sum(rate(vllm:request_success_total[1m]))", threshold: "1.5"}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_all_settings_of_both_kinds_are_read(tmp_path: Path) -> None:
    text = LISTED.replace("uid: 1-2-3", "annotations: {shoal.dev/metric: waiting}")
    chat, code = read_objects(written(tmp_path, text))
    assert (chat.name, code.name) == ("chat", "code")
    # The annotation says what each metric of the object counts.
    waiting = Quantity.WAITING
    assert chat.declared == HpaObject(
        (Metric(waiting, Form.PODS, 12.0), Metric(waiting, Form.VALUE, 0.5)),
        Behavior((Limit(1, False, 60),), 60),
        Behavior(DOWN.limits, DOWN.stable_s, Select.DISABLED, 0.05),
        2,
        9,
    )
    assert code.declared == HpaObject((Metric(Quantity.RATE, Form.AVERAGE, 1.5),), UP, DOWN, 1, 100)


@pytest.mark.parametrize(
    ("old", "new", "where", "allowed"),
    [
        ("name: queue", "name: my_queue", "metrics[1].external.metric.name", "shoal.dev/metric"),
        ("type: Pods\n      pods", "type: Resource\n      pods", "metrics[0].type", "Pods"),
        ('averageValue: "12"', 'averageValue: "-1"', "target.averageValue", "positive quantity"),
        ("maxReplicas: 9", "maxReplicas: 1", "spec.minReplicas", "at most the maximum 1"),
        ("maxReplicas: 9", "maxReplicas: nine", "maxReplicas", "whole number"),
        ("selectPolicy: Disabled", "selectPolicy: Off", "scaleDown.selectPolicy", "Max, Min"),
        ("type: prometheus", "type: cron", "triggers[0].type", "prometheus"),
        ("periodSeconds: 60", "period: 60", "policies[0].periodSeconds", "whole number"),
    ],
)
def test_an_error_names_object_path_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, where: str, allowed: str
) -> None:
    text = LISTED.replace("name: queue", "name: vllm:num_requests_waiting")
    old = old.replace("name: queue", "name: vllm:num_requests_waiting")
    assert old in text
    with pytest.raises(InvalidValue) as error:
        read_objects(written(tmp_path, text.replace(old, new)))
    assert where in str(error.value) and allowed in str(error.value)
    assert "mine.yaml" in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "a: [", "{}", "kind: Deployment\nmetadata: {name: a}", "[1]", "a: !!int b"]
)
def test_a_file_without_objects_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises((UserError, InvalidValue), match=re.escape("mine.yaml")):
        read_objects(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: cannot be read"):
        read_objects(tmp_path / "none.yaml")


def desired(rule: Hpa, in_flight: list[int], ready: int | None = None) -> list[int]:
    """Desired replicas at each sync (15 s) for requests in engines."""
    count, found = rule.desired_replicas(Signals(-1, 0, 0, None, 0, 0)), []
    for index, running in enumerate(in_flight):
        up = count if ready is None else ready
        count = rule.desired_replicas(Signals(15 * index, up, count, 1.0, running, 0))
        found.append(count)
    return found


PER_POD = Metric(Quantity.RUNNING, Form.PODS, 10.0)


def test_limits_of_change_hold_in_each_period() -> None:
    up = Behavior((Limit(2, False, 60), Limit(10, True, 60)), 0)
    down = Behavior((Limit(50, True, 60),), 0)
    found = desired(Hpa(HpaObject((PER_POD,), up, down), 4), [400] * 9 + [10] * 9)
    assert found[:9] == [6, 6, 6, 6, 8, 8, 8, 8, 10]
    # Half of the eight at the start of the minute, and half of the rest a minute later.
    assert found[9:] == [4, 4, 4, 4, 2, 2, 2, 2, 1]


def test_the_smaller_limit_counts_if_the_object_says_so_and_none_if_disabled() -> None:
    up = Behavior((Limit(5, False, 15), Limit(10, True, 15)), 0, Select.MIN)
    assert desired(Hpa(HpaObject((PER_POD,), up), 20), [900, 900]) == [22, 25]  # ceil(1.1 x 22)
    none = HpaObject((PER_POD,), UP, Behavior(DOWN.limits, 0, Select.DISABLED))
    assert desired(Hpa(none, 6), [0] * 40) == [6] * 40


def test_a_rise_must_last_for_its_window() -> None:
    up = Behavior(UP.limits, 60)
    spike = desired(Hpa(HpaObject((PER_POD,), up), 2), [20, 20, 90, 90, 20, 20, 20])
    assert spike == [2] * 7
    lasting = desired(Hpa(HpaObject((PER_POD,), up), 2), [20, 40, 40, 40, 40, 40])
    assert lasting == [2, 2, 2, 2, 4, 4]


def test_the_metric_that_needs_most_replicas_decides_within_the_bounds() -> None:
    rate = Metric(Quantity.RATE, Form.VALUE, 0.25)  # 1 req/s is four times the target
    rule = Hpa(HpaObject((PER_POD, rate), least=2, most=6), 2)
    assert desired(rule, [20, 20, 20], ready=2) == [6, 6, 6]
    assert desired(Hpa(HpaObject((PER_POD,), least=3), 1), [0] * 30)[-1] == 3


def test_a_backtest_runs_an_object_beside_shoal(tmp_path: Path) -> None:
    """Without a limit on replicas, the object follows the demand; with one it does not."""
    trace = tmp_path / "trace.csv"
    rows = [f"{i / 20:.2f},mini,900,90" for i in range(1200)]
    trace.write_text("\n".join(["time,model,input_tokens,output_tokens", *rows]))
    mine = written(
        tmp_path,
        LISTED[: LISTED.index("- apiVersion: keda")].replace("queue", "num_requests_waiting"),
    )
    out = tmp_path / "out.json"
    code = main([
        "backtest", "--trace", str(trace), "--config", str(CONFIG), "--policy", str(mine),
        "--jobs", "1", "--json", str(out), "--fluid",
    ])  # fmt: skip
    assert code == 0
    shoal, other = json.loads(out.read_bytes())["policies"][:2]
    assert shoal["name"] == "shoal" and other["name"] == str(mine)
    assert other["cost_usd"] > 0.0 and other["knob"]["value"] == 1.0


def test_a_model_without_an_object_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time,model,input_tokens,output_tokens\n0,mini,900,90\n60,mini,900,90\n")
    mine = written(tmp_path, LISTED.replace("name: queue", "name: vllm:num_requests_waiting"))
    code = main([
        "backtest", "--trace", str(trace), "--config", str(CONFIG), "--policy", str(mine),
        "--jobs", "1",
    ])  # fmt: skip
    said = capsys.readouterr().err
    assert code == 2 and "mini" in said and "chat, code" in said
