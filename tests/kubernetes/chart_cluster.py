"""Shoal's chart on a cluster of its own: Helm, kubectl and Shoal's own pods as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chart.helm_tools import tools
from tests.integration.docs.page_commands import ROOT
from tests.kubernetes.executor_bench import STUB
from tests.kubernetes.plane.build_plane import plane_folder
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.test_single_restart import free_port

IN_A_POD = Path("/var/run/secrets/kubernetes.io").exists()
"""Shoal's processes would then take the account of this machine's pod."""
IMAGES = ("vllm/vllm-openai=vllm serve", "REGISTRY/shoal=shoal")


class ChartCluster:
    """Runs commands in `folder`, which has the clone's `deploy`. Engines start when the file
    `engines` exists. Raises NoTools without Helm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines = folder / "engines"
        self.engines.touch()
        self.port = free_port()
        self._write_programs()
        (folder / "deploy").symlink_to(ROOT / "deploy")
        self.plane = ControlPlane(plane_folder(), folder / "plane")

    def _write_programs(self) -> None:
        """The programs of the user and of the images."""
        self._bin = self.folder / "bin"
        self._bin.mkdir()
        forward = f"{sys.executable} -m tests.kubernetes.plane.port_forward {self.port}"
        texts = {
            "shoal": f'exec {sys.executable} -m streams.cli.entry "$@"',
            "vllm": f"while [ ! -e {self.engines} ]; do sleep 0.1; done\n"
                    f'exec {sys.executable} -S -E {STUB} "$@"',
            "helm": f'exec {tools() / "helm"} "$@"',
            "kubectl": f'case " $* " in *" port-forward "*) exec {forward} "$@";; esac\n'
                       f'exec {tools() / "kubectl"} "$@"',
        }  # fmt: skip
        for name, text in texts.items():
            (self._bin / name).write_text(f"#!/bin/sh\n{text}\n")
            (self._bin / name).chmod(0o755)

    def start(self, nodes: list[str], labels: tuple[str, ...]) -> None:
        """Start the control plane, and `nodes` of four GPUs."""
        self.plane.start()
        images = [word for image in IMAGES for word in ("--image", image)]
        self.plane.start_kubelet(
            nodes, labels=labels, third=120, more=(*images, "--programs", str(self._bin))
        )

    def end(self) -> None:
        """End all processes."""
        self.plane.stop()

    @property
    def _environment(self) -> dict[str, str]:
        home = str(tools() / "home")
        return {
            "PATH": f"{self._bin}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": home,
            "KUBECONFIG": str(self.plane.kubeconfig()), "PYTHONUNBUFFERED": "1",
            "SHOAL_URL": f"http://127.0.0.1:{self.port}",
            **{f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")},
        }  # fmt: skip

    def run(self, command: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command. Returns what it prints."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self._environment, check=False,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
        )  # fmt: skip
        assert done.returncode in codes, (command, done.stdout, self.logs())
        return done.stdout

    def spawn(self, command: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self._environment,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def until(self, condition: Callable[[], object], limit_s: float = 240.0) -> None:
        """Wait for `condition`."""
        end_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end_s, self.logs()
            time.sleep(0.3)

    def get(self, what: str) -> Any:
        """Objects as JSON."""
        return json.loads(self.run(f"kubectl get {what} -o json"))

    def engine_pods(self) -> dict[str, dict[str, str]]:
        """Labels of the pods in `serving` that stay, by name."""
        return {
            one["metadata"]["name"]: one["metadata"].get("labels", {})
            for one in self.get("pods -n serving")["items"]
            if not one["metadata"].get("deletionTimestamp")
        }

    def own_pods(self) -> list[str]:
        """Names of the pods that Shoal made and that serve."""
        return [
            name
            for name, labels in self.engine_pods().items()
            if "shoal.dev/managed" in labels and labels.get("shoal.dev/serving") == "true"
        ]

    def endpoints(self, service: str) -> list[str]:
        """Addresses of the ready pods of a Service."""
        file = self.plane.folder / "pods" / "images" / "names" / service
        return file.read_text().split() if file.exists() else []

    def logs(self) -> str:
        """The ends of the logs of Shoal's pods."""
        files = (self.plane.folder / "pods").glob("shoal-*.log")
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in files)
