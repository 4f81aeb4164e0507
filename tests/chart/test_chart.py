"""The Helm chart: its modes, its refusals, the security of its pods and its files."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka.helpers import create_ssl_context

from deploy.kubernetes_base import BASE, rendered
from streams.broker.tls_listener import server_context, tls_listener
from streams.cli.main import COMMANDS
from streams.health.metric_names import METRICS
from tests.chart.conftest import KAFKA
from tests.chart.helm_tools import CHART, ROOT, helm, tools

Manifest = dict[str, Any]
Render = Callable[[Manifest], dict[tuple[str, str], Manifest]]
MODES = ("observe", "scale", "pods")
PODS = {"mode": "pods", "podTemplates": {"pod.yaml": "spec: {containers: [{name: engine}]}"}}
FULL: Manifest = {
    "kafka": {"bootstrap": "kafka:9093", "protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512",
              "username": "shoal", "existingSecret": "k", "ca": True, "certificate": True},
    "keys": {"existingSecret": "keys"},
    "tokens": {"existingSecret": "t", "existingKeys": ["read", "operator", "alert"]},
    "engineKey": {"existingSecret": "e"},
    "controller": {"replicas": 2},
    "gateway": {"replicas": 3, "apiKeys": {"existingSecret": "a"}},
    "executor": PODS,
    "supply": {"enabled": True},
    "engines": {"namespace": "serving"},
    "networkPolicy": {"enabled": True},
    "monitoring": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True},
                   "dashboard": {"enabled": True}},
}  # fmt: skip
EVERY_MODE = [
    {}, {"executor": {"mode": "scale"}}, {"executor": PODS}, {"executor": {"enabled": False}},
    KAFKA, {**KAFKA, "executor": {"mode": "scale"}}, {**KAFKA, "gateway": {"enabled": False}},
    {"supply": {"enabled": True}}, {"executor": PODS, "models": {"enabled": True}}, FULL,
]  # fmt: skip


def pods(manifests: dict[tuple[str, str], Manifest]) -> Iterator[Manifest]:
    """The pod specifications."""
    for (kind, _), one in manifests.items():
        if kind in ("Deployment", "StatefulSet"):
            yield one["spec"]["template"]["spec"]
        elif kind == "Pod":
            yield one["spec"]


OWN: Manifest = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/certs", "readOnly": True}],
}


@pytest.mark.parametrize("kafka", [{}, KAFKA])
def test_a_component_adds_to_the_settings_of_all_pods(kafka: Manifest, render: Render) -> None:
    """Maps are joined. A list of the component replaces the list for all."""
    every = {"pod": OWN, "supply": {"enabled": True}, **kafka}
    spread = [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
    part = {"nodeSelector": {"zone": "a"}, "tolerations": [], "topologySpreadConstraints": spread}
    made = render({**every, "controller": {"pod": part}})
    found = {
        key[1]: pod for key, one in made.items() for pod in pods({key: one}) if key[0] != "Pod"
    }
    of_controller = "shoal-controller" if kafka else "shoal"
    assert len(found) == (4 if kafka else 2)
    for name, pod in found.items():
        mine = name == of_controller
        assert pod["nodeSelector"] == {"disk": "ssd", **({"zone": "a"} if mine else {})}
        # The empty list replaces that of all pods.
        assert ("tolerations" in pod) is not mine
        assert (pod["topologySpreadConstraints"] == spread) is mine
        assert OWN["volumes"][0] in pod["volumes"]
        for container in pod["containers"]:
            assert OWN["env"][0] in container["env"]
            assert OWN["volumeMounts"][0] in container["volumeMounts"]


def test_replicas_are_spread_without_being_refused(render: Render) -> None:
    made = render({**KAFKA, "gateway": {"replicas": 3}})
    gateway = made["StatefulSet", "shoal-gateway"]["spec"]
    spread = gateway["template"]["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == [
        "kubernetes.io/hostname", "topology.kubernetes.io/zone"
    ]  # fmt: skip
    for one in spread:
        assert one["whenUnsatisfiable"] == "ScheduleAnyway"
        assert one["labelSelector"] == gateway["selector"]


@pytest.mark.parametrize("values", EVERY_MODE)
def test_executors_share_a_lease_and_a_name(values: Manifest, render: Render) -> None:
    """Their pods have random names, so the slots follow the name of the release."""
    for (kind, name), one in render(values).items():
        if name == "shoal-executor" and kind in ("Deployment", "StatefulSet"):
            assert kind == "Deployment"
            args = one["spec"]["template"]["spec"]["containers"][0]["args"]
            if args[0] == "executor":
                assert "--id=shoal-executor" in args
                assert "--lease=shoal-executor/$(POD_NAME)" in args


@pytest.mark.parametrize("values", EVERY_MODE)
def test_openshift_chooses_the_user(values: Manifest, render: Render) -> None:
    """Its restricted profile refuses a fixed user and group."""
    for pod in pods(render({**values, "pod": {"user": None}})):
        assert pod["securityContext"] == {
            "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}
        }  # fmt: skip


@pytest.mark.parametrize("kafka", [{}, KAFKA])
def test_gateways_are_reached_from_outside_of_the_cluster(kafka: Manifest, render: Render) -> None:
    assert not {"Ingress", "HTTPRoute"} & {kind for kind, _ in render(kafka)}
    ingress = {"hosts": ["llm.test"], "className": "nginx", "tlsSecret": "cert"}
    route = {"parentRefs": [{"name": "edge", "namespace": "infra"}], "hosts": ["llm.test"]}
    made = render({**kafka, "gateway": {"ingress": ingress, "httpRoute": route}})
    spec = made["Ingress", "shoal-gateway"]["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert spec["tls"] == [{"hosts": ["llm.test"], "secretName": "cert"}]
    service = made["Service", "shoal-gateway"]["spec"]["ports"][0]
    (rule,) = spec["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert (rule["host"], backend) == (
        "llm.test", {"name": "shoal-gateway", "port": {"name": service["name"]}}
    )  # fmt: skip
    routed = made["HTTPRoute", "shoal-gateway"]["spec"]
    assert (routed["parentRefs"], routed["hostnames"]) == (route["parentRefs"], ["llm.test"])
    assert routed["rules"][0]["backendRefs"] == [{"name": "shoal-gateway", "port": service["port"]}]


@pytest.mark.parametrize("values", EVERY_MODE)
def test_every_pod_is_restricted_and_starts_a_known_command(
    values: Manifest, render: Render
) -> None:
    """The rules are those of the Pod Security level `restricted`, and a read-only root."""
    for pod in pods(render(values)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert container["args"][0] in COMMANDS
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize("values", EVERY_MODE)
def test_no_secret_stands_in_the_environment_or_in_arguments(
    values: Manifest, render: Render
) -> None:
    for pod in pods(render(values)):
        mounted = [
            item["path"]
            for volume in pod["volumes"]
            if volume["name"] == "secrets"
            for source in volume["projected"]["sources"]
            for item in source["secret"]["items"]
        ]
        for container in pod["containers"]:
            for variable in container["env"]:
                assert "secretKeyRef" not in variable.get("valueFrom", {})
                if variable["name"].endswith("_FILE"):
                    path = variable["value"].removeprefix("/etc/shoal/secrets/")
                    assert path in mounted or "$(POD_NAME)" in path, variable


def test_without_kafka_one_pod_has_everything(render: Render) -> None:
    made = render({"executor": {"mode": "scale"}})
    workloads = [key for key in made if key[0] in ("Deployment", "StatefulSet")]
    assert sorted(workloads) == [("Deployment", "shoal"), ("StatefulSet", "shoal-gateway")]
    args = made["Deployment", "shoal"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[0] == "single"
    assert [word.split("=")[0] for word in args[3:]] == [
        "--controller", "--broker-listen", "--broker-tls", "--executor"
    ]  # fmt: skip


async def test_gateways_reach_the_embedded_broker_with_its_certificate(
    render: Render, tmp_path: Path
) -> None:
    """They connect to its Service, by the name in the certificate."""
    made = render({"executor": {"mode": "scale"}})
    secret = made["Secret", "shoal-broker"]["data"]
    for name, text in secret.items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    tls = server_context(tmp_path / "tls.crt", tmp_path / "tls.key")
    async with tls_listener("127.0.0.1", 0, tls, "127.0.0.1:9") as port:
        client = create_ssl_context(cafile=tmp_path / "tls.crt", certfile=tmp_path / "tls.crt",
                                    keyfile=tmp_path / "tls.key")  # fmt: skip
        await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="shoal-broker")
    gateway = made["StatefulSet", "shoal-gateway"]["spec"]["template"]["spec"]["containers"][0]
    assert "--broker=shoal-broker:9092" in gateway["args"]
    env = {one["name"]: one.get("value") for one in gateway["env"]}
    assert env["SHOAL_KAFKA_PROTOCOL"] == "SSL"
    service = made["Service", "shoal-broker"]["spec"]
    assert service["ports"] == [{"name": "kafka", "port": 9092, "targetPort": "broker"}]
    single = made["Deployment", "shoal"]["spec"]["template"]
    assert service["selector"].items() <= single["metadata"]["labels"].items()
    (container,) = single["spec"]["containers"]
    assert {"name": "broker", "containerPort": 9092} in container["ports"]
    assert not [one for one in container["env"] if one["name"].startswith("SHOAL_KAFKA")]
    given = render({"broker": {"existingSecret": "mine"}})
    assert ("Secret", "shoal-broker") not in given
    assert json.dumps(list(given.values())).count('"name": "mine"') == 2
    for values in ({"gateway": {"enabled": False}}, KAFKA):
        other = render(values)
        assert ("Secret", "shoal-broker") not in other and ("Service", "shoal-broker") not in other
        assert "9092" not in json.dumps(list(other.values())).replace("kafka:9092", "")


def test_the_next_single_pod_serves_before_the_former_one_ends(render: Render) -> None:
    made = render({"executor": {"mode": "scale"}})["Deployment", "shoal"]["spec"]
    assert made["strategy"] == {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    executor = made["template"]["spec"]["containers"][0]["args"][-1]
    assert "--id=shoal-executor --lease=shoal-executor/$(POD_NAME) --standby-reports" in executor
    # two pods cannot write one decision log
    claimed = render({"controller": {"decisionLog": {"existingClaim": "log"}}})
    assert claimed["Deployment", "shoal"]["spec"]["strategy"] == {"type": "Recreate"}


def test_mode_observe_starts_no_executor(render: Render) -> None:
    (single,) = pods({k: v for k, v in render({}).items() if k == ("Deployment", "shoal")})
    assert not any("--executor" in word for word in single["containers"][0]["args"])
    assert ("Deployment", "shoal-executor") not in render(KAFKA)


def test_the_network_policy_admits_only_pods_of_the_release_to_the_broker(render: Render) -> None:
    made = render({"networkPolicy": {"enabled": True}})
    policy = made["NetworkPolicy", "shoal"]["spec"]
    (port,) = made["Service", "shoal-broker"]["spec"]["ports"]
    rules = [
        rule
        for rule in policy["ingress"]
        if port["port"] in [one["port"] for one in rule.get("ports", [port])]
    ]
    assert [rule["from"] for rule in rules] == [[{"podSelector": policy["podSelector"]}]]


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_has_the_rights_of_rbac_yaml(mode: str, render: Render) -> None:
    """One Role for each mode, and no right to write outside of a namespace."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rbac.yaml").read_text())
    known = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    expected = known["Role", "shoal-observe"]["rules"]
    for lower in MODES[1 : MODES.index(mode) + 1]:
        expected = expected + known["Role", f"shoal-{lower}"]["rules"]
    made = render({"executor": {**PODS, "mode": mode}, "engines": {"namespace": "serving"}})
    roles = [one for (kind, _), one in made.items() if kind == "Role"]
    assert [role["rules"] for role in roles] == [expected]
    assert roles[0]["metadata"]["namespace"] == "serving"
    assert (
        made["ClusterRole", "fleet-shoal-nodes"]["rules"]
        == (known["ClusterRole", "shoal-nodes"]["rules"])
    )
    verbs = {v for rule in made["ClusterRole", "fleet-shoal-nodes"]["rules"] for v in rule["verbs"]}
    assert verbs == {"list", "watch"}
    without = render({"executor": {**PODS, "mode": mode, "readNodes": False}})
    assert not [kind for kind, _ in without if kind.startswith("Cluster")]


@pytest.mark.parametrize("kafka", [{}, KAFKA])
@pytest.mark.parametrize("mode", MODES[1:])
def test_models_have_a_definition_rights_and_a_source_only_if_enabled(
    kafka: Manifest, mode: str, render: Render
) -> None:
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rbac.yaml").read_text())
    known = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    values = {**kafka, "executor": {**PODS, "mode": mode}, "tokens": {"read": "r" * 16}}
    host = "shoal-controller" if kafka else "127.0.0.1"
    option, token = f"--models-from=http://{host}:8702", "SHOAL_READ_TOKEN_FILE"
    for models in ({}, {"enabled": True}, {"enabled": True, "crd": False}):
        made = render({**values, "models": models})
        (role,) = [one for (kind, _), one in made.items() if kind == "Role"]
        rights = [rule for rule in role["rules"] if rule["apiGroups"] == ["shoal.dev"]]
        own = known["Role", "shoal-models"]["rules"] if models else []
        assert rights == own
        crd = bool(models) and "crd" not in models
        assert (("CustomResourceDefinition", "shoalmodels.shoal.dev") in made) is crd
        assert (("ClusterRole", "shoalmodels-view") in made) is crd
        given = [
            container
            for pod in pods(made)
            for container in pod["containers"]
            if option in " ".join(container["args"])
        ]
        assert len(given) == bool(models)
        assert all(token in {one["name"] for one in container["env"]} for container in given)


def test_engines_that_shoal_moves_have_the_disruption_budget_of_deploy(render: Render) -> None:
    file = ROOT / "deploy" / "kubernetes" / "disruption-budget.yaml"
    engines = {"engines": {"namespace": "serving"}}
    wished = {"podDisruptionBudget": {"enabled": False}}
    for mode, more in (("pods", wished), *((mode, {}) for mode in MODES)):
        made = render({"executor": {**PODS, "mode": mode, **more}, **engines})
        found = [
            one
            for (kind, name), one in made.items()
            if kind == "PodDisruptionBudget" and name.endswith("-engines")
        ]
        assert len(found) == (mode != "observe" and not more)
    assert found[0]["spec"] == yaml.safe_load(file.read_text())["spec"]
    assert found[0]["metadata"]["namespace"] == "serving"


def test_a_further_kind_has_an_argument_and_the_rights_of_the_known_ones(render: Render) -> None:
    kinds = [
        "argoproj.io/v1alpha1/Rollout/rollouts",
        "v1/ReplicationController/replicationcontrollers",
    ]
    for kafka in ({}, KAFKA):
        made = render({**kafka, "executor": {"mode": "scale", "scaleKinds": kinds}})
        (role,) = [one for (kind, _), one in made.items() if kind == "Role"]
        rights = {
            (group, resource, verb)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for group, plural in (("argoproj.io", "rollouts"), ("", "replicationcontrollers")):
            known = {("apps", r, v): v for g, r, v in rights if g == "apps" and "deployments" in r}
            for _, resource, verb in known:
                assert (group, resource.replace("deployments", plural), verb) in rights
        words = [word for pod in pods(made) for c in pod["containers"] for word in c["args"]]
        assert " ".join(f"--scale-kind={kind}" for kind in kinds) in " ".join(words)


def test_only_the_executor_has_an_account(render: Render) -> None:
    made = render({**FULL, "engines": {}})
    for name in ("shoal-controller", "shoal-gateway"):
        kind = "Deployment" if name == "shoal-controller" else "StatefulSet"
        pod = made[kind, name]["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod


def test_a_gateway_gets_no_key_of_the_cluster(render: Render) -> None:
    made = render(FULL)
    text = json.dumps(made["StatefulSet", "shoal-gateway"])
    assert "cluster.key" not in text and "operator.key" not in text
    assert all(f"shoal-gateway-{number}.key" in text for number in range(3))


def test_liveness_asks_the_event_loop_alone(render: Render) -> None:
    """A liveness probe on /healthz would restart leaders during an outage of Kafka."""
    for pod in pods(render({**FULL, "supply": {"enabled": False}})):
        for container in pod["containers"]:
            if container["args"][0] not in ("status", "windows"):
                assert container["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_window_workers_write_what_the_controllers_read(render: Render) -> None:
    """They are scaled by a value. Without Kafka, or with `demand: telemetry`, there are none."""
    made = render({**FULL, "windows": {"replicas": 3}})
    workers = made["Deployment", "shoal-windows"]["spec"]
    assert workers["replicas"] == 3
    (container,) = workers["template"]["spec"]["containers"]
    controller = made["Deployment", "shoal-controller"]["spec"]["template"]["spec"]["containers"]
    assert "--demand=merged" in controller[0]["args"]
    assert set(container["args"]) - {"windows"} <= set(controller[0]["args"])
    known = {one["name"]: one.get("value") for one in controller[0]["env"]}
    mine = {one["name"]: one.get("value") for one in container["env"]}
    assert mine.items() <= known.items() and "SHOAL_CLUSTER_KEY_FILE" in mine
    assert "token" not in json.dumps(workers["template"]["spec"]["volumes"]).lower()
    for values in ({}, {**KAFKA, "controller": {"demand": "telemetry"}}):
        assert not [name for _, name in render(values) if name == "shoal-windows"]


def test_a_gateway_has_time_for_its_drain(render: Render) -> None:
    made = render({**KAFKA, "gateway": {"drainSeconds": 900, "preStopSeconds": 7}})
    pod = made["StatefulSet", "shoal-gateway"]["spec"]["template"]["spec"]
    assert "--drain-s=900" in pod["containers"][0]["args"]
    assert pod["terminationGracePeriodSeconds"] >= 900 + 7


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({**KAFKA, "broker": {"existingSecret": "x"}}, "broker.existingSecret and kafka.bootstrap"),
        ({"executor": {"replicas": 2}}, "executor.replicas is 2, but kafka.bootstrap"),
        ({"controller": {"replicas": 2}}, "controllers elect a leader through Kafka"),
        ({"windows": {"replicas": 2}}, "windows.replicas is 2, but kafka.bootstrap is not set"),
        ({**KAFKA, "windows": {"replicas": 0}}, "controller.demand is merged: no process would"),
        ({"executor": {"mode": "pods"}}, "there is no pod template"),
        ({"config": {}}, "config is empty"),
        ({"tokens": {"read": "r" * 16, "existingSecret": "t"}}, "tokens.existingSecret and tokens"),
        ({"engineKey": {"value": "e" * 32, "existingSecret": "e"}}, "engineKey.value and"),
        ({"engineKey": {"value": "e" * 32}, "engines": {"namespace": "x"}}, "in namespace x"),
        ({"gateway": {"apiKeys": {"text": "x", "existingSecret": "e"}}}, "gateway.apiKeys.text"),
        ({"kafka": {"protocol": "SSL"}}, "kafka.bootstrap is not set"),
        ({"kafka": {"bootstrap": "k:1", "protocol": "SASL_SSL"}}, "kafka.mechanism"),
        ({"kafka": {"bootstrap": "k:1", "password": "p"}}, "allowed with SASL_SSL"),
        ({"kafka": {"bootstrap": "k:1", "ca": True}}, "come from kafka.existingSecret"),
        ({"supply": {"enabled": True}, "executor": {"readNodes": False}}, "readNodes is false"),
        ({"models": {"enabled": True}}, "models.enabled is true, but no executor acts"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is needed"),
        ({"executor": {"mde": "pods"}}, "additional properties 'mde' not allowed"),
        ({"executor": {"mode": "all"}}, "'observe', 'scale', 'pods'"),
        ({"executor": {"scaleKinds": ["v1/Set/sets"]}}, "executor.mode is observe"),
        ({"executor": {"mode": "scale", "scaleKinds": ["Rollout"]}}, "/executor/scaleKinds/0"),
        ({"gateway": {"replicas": "2"}}, "got string, want integer"),
        ({"tokens": {"read": "short"}}, "/tokens/read"),
        ({"kafka": {"bootstrap": "kafka"}}, "/kafka/bootstrap"),
        ({"pod": {"tolerations": [{"key": "a", "effect": "NoRun"}]}}, "/pod/tolerations/0/effect"),
        ({"gateway": {"resources": {"limits": {"memory": "2 GB"}}}}, "/limits/memory"),
        ({"gateway": {"pod": {"users": 1}}}, "additional properties 'users' not allowed"),
        ({"executor": {"podTemplates": {"pod.yaml": "a: ["}}}, "pod.yaml is not YAML"),
        ({"executor": {"podTemplates": {"pod.yaml": "spec: {}"}}}, "no list spec.containers"),
    ],
)  # fmt: skip
def test_values_are_refused_with_the_reason(
    values: Manifest, reason: str, refusal: Callable[[Manifest], str]
) -> None:
    assert reason in refusal(values)


def test_the_chart_passes_helm_lint(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"config": {"text": "models: {}"}}))
    done = helm("lint", "--strict", str(CHART), "--values", str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stdout


def test_the_schema_knows_every_value_and_refuses_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(part: Manifest, values: Manifest, path: str) -> None:
        for key, value in values.items():
            assert key in part["properties"], f"{path}{key}"
            below = part["properties"][key]
            if "$ref" in below:
                below = schema["definitions"][below["$ref"].rpartition("/")[2]]
            if isinstance(value, dict) and "properties" in below:
                assert below["additionalProperties"] is False, f"{path}{key}"
                check(below, value, f"{path}{key}.")

    check(schema, yaml.safe_load((CHART / "values.yaml").read_text()), "")


def test_rules_and_dashboard_match_the_metrics() -> None:
    for name in ("shoal-rules.yml", "shoal-slo-rules.yml"):
        rules = ROOT / "deploy" / "prometheus" / name
        assert (CHART / "files" / name).read_text() == rules.read_text()
        names = re.findall(r"shoal_(?!executor)\w+", rules.read_text())
        assert names and set(names) <= {metric.name for metric in METRICS}
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    used = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"shoal_\w+", target["expr"])
    }
    assert used and used <= {metric.name for metric in METRICS}


def test_alerts_link_to_the_given_documentation(render: Render) -> None:
    docs = "https://docs.test"
    rules = {"enabled": True, "docs": docs}
    manifests = render({"monitoring": {"prometheusRule": rules}})
    links = [
        rule["annotations"]["runbook_url"]
        for (kind, _), one in manifests.items()
        if kind == "PrometheusRule"
        for group in one["spec"]["groups"]
        for rule in group["rules"]
        if "runbook_url" in rule.get("annotations", {})
    ]
    assert len(links) > 10 and all(link.startswith(f"{docs}/how-to/") for link in links)


def test_the_kustomize_base_is_the_rendered_chart() -> None:
    """`python deploy/kubernetes_base.py` writes it."""
    assert BASE.read_text() == rendered()


def test_kustomize_builds_the_base() -> None:
    argv = [str(tools() / "kubectl"), "kustomize", str(BASE.parent)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    namespaces = {one["metadata"].get("namespace") for one in yaml.safe_load_all(done.stdout)}
    assert namespaces == {"shoal", None}  # None: cluster-wide objects
