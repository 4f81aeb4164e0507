"""A real control plane on loopback for one test session: etcd, API server, scheduler, controllers.

Users are static tokens: the administrator, and the service accounts of deploy/kubernetes/rbac.yaml.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

NAMESPACE = "serving"
ACCOUNTS = ("shoal-observe", "shoal-scale", "shoal-pods")
_CONTROLLERS = (
    "deployment-controller", "replicaset-controller", "statefulset-controller",
    "disruption-controller", "namespace-controller", "resourcequota-controller",
    "node-lifecycle-controller", "pod-garbage-collector-controller",
    "garbage-collector-controller", "horizontal-pod-autoscaler-controller",
)  # fmt: skip
_READY_S = 60.0


class ControlPlane:
    """The processes of a control plane. binaries: see build_plane. folder: for state and logs."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._port, self._etcd = _free_port(), _free_port()
        self._tokens = {name: secrets.token_hex(16) for name in ("admin", *ACCOUNTS)}

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://127.0.0.1:{self._port}"

    def kubeconfig(self, user: str = "admin") -> Path:
        """The kubeconfig of the administrator or of a service account."""
        return self.folder / f"{user}.kubeconfig"

    def start(self) -> None:
        """Start everything. Returns when the API server is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_certificates()
        self._write_users()
        peer = f"http://127.0.0.1:{_free_port()}"
        client = f"http://127.0.0.1:{self._etcd}"
        self._run(
            "etcd", f"--data-dir={self.folder / 'etcd'}", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )  # fmt: skip
        self.start_api_server()
        self._start_controllers()

    def restart_controllers(self) -> None:
        """Start scheduler and controllers again: they wait for long after many lost connections."""
        for name in ("kube-controller-manager", "kube-scheduler"):
            process = self._processes.pop(name)
            process.kill()
            process.wait()
        self._start_controllers()

    def _start_controllers(self) -> None:
        admin = f"--kubeconfig={self.kubeconfig()}"
        common = (admin, "--leader-elect=false", "--bind-address=127.0.0.1")
        self._run(
            "kube-controller-manager", *common, f"--secure-port={_free_port()}",
            f"--controllers={','.join(_CONTROLLERS)}",
            "--horizontal-pod-autoscaler-sync-period=2s",
        )  # fmt: skip
        self._run("kube-scheduler", *common, f"--secure-port={_free_port()}")

    def start_api_server(self) -> None:
        """Start the API server (again), and wait until it is ready."""
        at = self.folder
        key = f"{at / 'account.key'}"
        self._run(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={at / 'server.crt'}", f"--tls-private-key-file={at / 'server.key'}",
            f"--client-ca-file={at / 'ca.crt'}", f"--token-auth-file={at / 'tokens.csv'}",
            "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--shutdown-delay-duration=0s", f"--audit-policy-file={at / 'audit.yaml'}",
            f"--audit-log-path={at / 'audit.log'}",
        )  # fmt: skip
        tls = ssl.create_default_context(cafile=str(at / "ca.crt"))
        end_s = time.monotonic() + _READY_S
        while not self._answers(tls):
            if self._processes["kube-apiserver"].poll() is not None or time.monotonic() > end_s:
                raise RuntimeError((at / "kube-apiserver.log").read_text()[-3000:])
            time.sleep(0.2)

    def kill_api_server(self) -> None:
        """Kill the API server with SIGKILL."""
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def start_kubelet(
        self, nodes: list[str], gpus: int = 4, labels: tuple[str, ...] = ("pool=l4",),
        third: int = 10, more: tuple[str, ...] = (),
    ) -> str:  # fmt: skip
        """Start a kubelet for `nodes`. more: further options. Returns the name of its process."""
        name = f"kubelet-{third}"
        argv = [sys.executable, "-m", "tests.kubernetes.plane.loop_kubelet", str(self.kubeconfig())]
        argv += [word for node in nodes for word in ("--node", node)]
        argv += [word for label in labels for word in ("--label", label)]
        argv += ["--gpus", str(gpus), "--third", str(third), *more]
        argv += ["--logs", str(self.folder / "pods")]
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            self._processes[name] = subprocess.Popen(argv, stdout=out, stderr=out)
        end_s = time.monotonic() + _READY_S
        while "ready" not in log.read_text():
            if time.monotonic() > end_s or self._processes[name].poll() is not None:
                raise RuntimeError(log.read_text()[-3000:])
            time.sleep(0.1)
        return name

    def allowed_requests(self, account: str) -> set[tuple[str, str, str]]:
        """(group, resource, verb) of all permitted requests of a service account.

        The resource of a subresource is "deployments/scale".
        """
        found = set()
        for event in self._audited(account):
            decision = (event.get("annotations") or {}).get("authorization.k8s.io/decision")
            if decision == "allow":
                group = (event.get("objectRef") or {}).get("apiGroup", "")
                found.add((group, _resource(event), event["verb"]))
        return found

    def count_requests(self, account: str) -> Counter[str]:
        """Number of all requests of a service account so far, by verb and resource. A watch counts
        when it opens.
        """
        return Counter(
            f"{event['verb']} {_resource(event)}"
            for event in self._audited(account)
            if event["verb"] != "watch" or event["stage"] == "ResponseStarted"
        )

    def stop_process(self, name: str) -> None:
        """Stop one process."""
        process = self._processes.pop(name)
        process.terminate()
        process.wait(60)

    def stop(self) -> None:
        """Stop everything. Kubelets end their pods first."""
        for name in sorted(self._processes, key=lambda name: not name.startswith("kubelet")):
            process = self._processes[name]
            process.send_signal(signal.SIGTERM if name.startswith("kubelet") else signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        self._processes.clear()

    # -- internal -----------------------------------------------------------------------------

    def _audited(self, account: str) -> Iterator[Any]:
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        for line in (self.folder / "audit.log").read_text().splitlines():
            event = json.loads(line)
            if event["user"]["username"] == user:
                yield event

    def _run(self, name: str, *options: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                [str(self._binaries / name), *options], stdout=out, stderr=out,
                start_new_session=True, env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            )  # fmt: skip

    def _answers(self, tls: ssl.SSLContext) -> bool:
        request = urllib.request.Request(  # noqa: S310  https on loopback
            f"{self.server}/readyz", headers={"Authorization": f"Bearer {self._tokens['admin']}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=2, context=tls) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _write_users(self) -> None:
        lines = [f"{self._tokens['admin']},admin,admin,system:masters"]
        for account in ACCOUNTS:
            user = f"system:serviceaccount:{NAMESPACE}:{account}"
            lines.append(f"{self._tokens[account]},{user},{account},system:serviceaccounts")
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
                {"level": "None"},
            ],
        }
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(policy))
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        for user, token in self._tokens.items():
            self.write_kubeconfig(self.kubeconfig(user), token)

    def write_kubeconfig(self, path: Path, token: str) -> None:
        """Write a kubeconfig with a token."""
        cluster = {"server": self.server, "certificate-authority": str(self.folder / "ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "t", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [
                {"name": "t", "context": {"cluster": "t", "user": "u", "namespace": NAMESPACE}}
            ],
            "current-context": "t",
        }
        path.write_text(yaml.safe_dump(config))

    def _make_certificates(self) -> None:
        at = self.folder
        extensions = at / "extensions"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        for argv in (
            ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=test-ca",
             "-keyout", "ca.key", "-out", "ca.crt"),
            ("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kube-apiserver",
             "-keyout", "server.key", "-out", "server.csr"),
            ("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
             "-CAcreateserial", "-days", "30", "-out", "server.crt", "-extfile", "extensions"),
            ("genrsa", "-out", "account.key", "2048"),
        ):  # fmt: skip
            subprocess.run(["openssl", *argv], cwd=at, check=True, capture_output=True)


def _resource(event: Any) -> str:
    """The resource of an audit event, with its subresource: "deployments/scale"."""
    about = event.get("objectRef") or {}
    part = about.get("subresource")
    return f"{about.get('resource')}/{part}" if part else str(about.get("resource"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
