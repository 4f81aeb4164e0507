"""A real controller and executor of mode `pods` on an embedded broker, each in its own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.conftest import Start
from tests.kubernetes.executor_bench import write_engine
from tests.kubernetes.plane.control_plane import ControlPlane


@dataclass(frozen=True, slots=True)
class RealControl:
    """The broker runs; `run` starts the others. folder: of all files. templates: of the pods."""

    start: Start
    folder: Path
    bootstrap: str
    templates: Path
    vllm: Path

    @classmethod
    def of(cls, start: Start, folder: Path, config: str) -> RealControl:
        """Write `config`, a shoal.yaml, and start the broker."""
        (folder / "shoal.yaml").write_text(config)
        broker = start("streams.broker")
        assert broker.stdout is not None
        bootstrap = json.loads(broker.stdout.readline())["bootstrap"]
        return cls(start, folder, bootstrap, *write_engine(folder))

    def run(self, plane: ControlPlane, *options: str, http: str = "") -> None:
        """Start controller and executor, the executor with `options`. http: HOST:PORT of the
        controller."""
        common = ("--config", str(self.folder / "shoal.yaml"), "--broker", self.bootstrap)
        self.start("streams.cli.entry", "controller", *common, "--http", http, "--record", "")
        self.start(
            "streams.cli.entry", "executor", *common, "--kubernetes", "--namespace", "serving",
            "--kubeconfig", str(plane.kubeconfig("shoal-pods")), "--vllm", str(self.vllm),
            "--pod-templates", str(self.templates), "--state-dir", str(self.folder / "state"),
            *options,
        )  # fmt: skip

    def log(self) -> str:
        """The end of what the processes logged."""
        return (self.folder / "log").read_text()[-3000:]
