"""The pod of a launch is built from the operator's template."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from executors.engines.engine_protocol import API_KEY, LaunchLine
from executors.kubernetes import kube_names as names
from executors.kubernetes.pod_template import (
    PodLaunch,
    PodSettings,
    build_pod,
    parse_template,
    read_launch,
    with_role,
)
from topics.checks import InvalidValue
from topics.fleet import DesiredInstance

TEMPLATE = """
metadata:
  labels: {team: a}
  ownerReferences: [{kind: ConfigMap}]
spec:
  tolerations: [{key: gpu, operator: Exists}]
  nodeSelector: {zone: z}
  containers:
  - name: engine
    image: vllm:1
    env: [{name: HF_HOME, value: /models}, {name: POD_IP, value: wrong}]
    resources: {limits: {memory: 10Gi}}
  - name: sidecar
    image: logs
"""
WISH = DesiredInstance("m.0", "org/m", "prefill", "g:1", (0, 1))
LAUNCH = PodLaunch(WISH, 2, (8000,), 5)
LINE = LaunchLine(("vllm", "serve"), (("VLLM_HOST_IP", "$(POD_IP)"), (API_KEY, "secret")))
SETTINGS = PodSettings("us/l4/spot", {"pool": "l4"}, key_secret=("keys", "engine"))


def made(**changes: Any) -> dict[str, Any]:
    settings = replace(SETTINGS, **changes)
    return build_pod(parse_template(TEMPLATE), settings, "us.l4.spot.0", LAUNCH, LINE, "", 20)


def test_the_template_keeps_its_own_settings() -> None:
    pod = made()
    engine, sidecar = pod["spec"]["containers"]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert pod["spec"]["nodeSelector"] == {"zone": "z", "pool": "l4"}
    assert engine["image"] == "vllm:1"
    assert engine["resources"]["limits"] == {"memory": "10Gi", "nvidia.com/gpu": "2"}
    assert sidecar == {"name": "sidecar", "image": "logs"}


def test_a_pod_has_no_owner_so_that_removing_shoal_stops_no_engine() -> None:
    assert "ownerReferences" not in made()["metadata"]
    assert made()["spec"]["restartPolicy"] == "Never"


def test_the_engine_key_is_a_reference_and_in_no_value() -> None:
    pod = made()
    by_name = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
    assert by_name[API_KEY]["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "engine"}
    assert "secret" not in yaml.safe_dump(pod["spec"]["containers"][0]["command"])
    assert '"secret"' not in str(pod)


def test_the_address_comes_before_the_variables_that_refer_to_it() -> None:
    env = made()["spec"]["containers"][0]["env"]
    assert env[0]["name"] == "POD_IP"
    assert [item["name"] for item in env].count("POD_IP") == 1


def test_a_slot_is_one_node_and_a_node_is_one_slot() -> None:
    affinity = made()["spec"]["affinity"]
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    together = affinity["podAffinity"][rule][0]
    apart = affinity["podAntiAffinity"][rule][0]
    # claims of mode `scale` on pods of other owners force nothing
    assert _expressions(together) == [(names.MANAGED, "In"), (names.SLOT, "In")]
    assert _expressions(apart) == [
        (names.MANAGED, "In"), (names.SLOT, "Exists"), (names.SLOT, "NotIn"),
    ]  # fmt: skip
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    terms = [affinity[part][preferred][0]["podAffinityTerm"] for part in affinity]
    assert [_expressions(term) for term in terms] == [
        [(names.SLOT, "In")], [(names.SLOT, "Exists"), (names.SLOT, "NotIn")],
    ]  # fmt: skip


def _expressions(term: Any) -> list[tuple[str, str]]:
    return [(e["key"], e["operator"]) for e in term["labelSelector"]["matchExpressions"]]


def test_the_launch_survives_in_the_annotation_with_the_role_of_the_label() -> None:
    pod = made()
    launch = read_launch(pod["metadata"]["annotations"])
    assert launch == LAUNCH
    assert launch is not None
    assert with_role(launch, {names.ROLE: "decode"}).desired.phase == "decode"
    assert with_role(launch, {names.ROLE: "nonsense"}) == LAUNCH
    assert read_launch({}) is None
    assert read_launch({names.LAUNCH: '{"attempt": 1}'}) is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("a: [", "template"),
        ("spec: {containers: [{name: other}]}", "template.spec.containers"),
        ("spec: {containers: []}", "template.spec.containers"),
        ("spec: {containers: [{name: engine, command: [a]}]}",
         "template.spec.containers[engine].command"),
        ("spec: {restartPolicy: Always, containers: [{name: engine}]}",
         "template.spec.restartPolicy"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_used_is_refused_with_its_field(text: str, field: str) -> None:
    with pytest.raises(InvalidValue) as error:
        parse_template(text)
    assert error.value.field == field


@given(st.text(min_size=1, max_size=200))
def test_every_id_gives_a_valid_label_and_different_ids_different_labels(text: str) -> None:
    value = names.label_value(text)
    assert len(value) <= 63
    assert all(c.isascii() and (c.isalnum() or c in "._-") for c in value)
    assert not value or (value[0].isalnum() and value[-1].isalnum())
    assert value == text or value != names.label_value(text + "x")


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}", fullmatch=True), st.integers(0, 99))
def test_the_name_of_a_pod_is_valid_and_follows_from_instance_and_attempt(
    instance: str, attempt: int
) -> None:
    name = names.pod_name(instance, attempt)
    assert name == names.pod_name(instance, attempt)
    assert name != names.pod_name(instance, attempt + 1)
    assert len(name) <= 63
    assert all(c.isascii() and (c.islower() or c.isdigit() or c == "-") for c in name)


def test_slots_of_mig_slices_share_a_node() -> None:
    pod = made(gpu_resource="nvidia.com/mig-3g.20gb")
    assert pod["spec"]["affinity"] == {}
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-3g.20gb"] == "2"
