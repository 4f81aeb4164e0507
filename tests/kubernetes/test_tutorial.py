"""The tutorial of Kubernetes from its first command to its last one, with the outputs it shows.

The page's commands run in order, with the chart's own pods as processes and stubs as engines.
What a sentence tells the reader to do or to see is done or compared here, and the sentence must
stand on the page.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.helm_tools import NoTools
from tests.integration.docs.page_commands import ROOT, Block, blocks
from tests.kubernetes.chart_cluster import IN_A_POD, ChartCluster

PAGE = ROOT / "docs" / "tutorials" / "kubernetes.md"
LABELS = ("node.kubernetes.io/instance-type=g6.12xlarge", "nvidia.com/gpu.product=NVIDIA-L4",
          "topology.kubernetes.io/region=us-east-1")  # fmt: skip


@pytest.fixture(autouse=True)
def empty() -> None:
    """The cluster of this test ends with it."""


class Reader(ChartCluster):
    """Follows the page."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.blocks = list(blocks(PAGE))
        self._text = PAGE.read_text(encoding="utf-8")
        self._forward: subprocess.Popen[str] | None = None

    def end(self) -> None:
        """End all processes."""
        if self._forward is not None:
            self._forward.kill()
            self._forward.communicate()
        super().end()

    def says(self, *texts: str) -> None:
        """The page has these texts."""
        for text in texts:
            assert text in self._text, f"the page no longer says: {text}"

    def next(self, language: str) -> Block:
        """The next block, which is of this language."""
        block = self.blocks.pop(0)
        assert block.language == language, block
        return block

    def save(self) -> None:
        """Save the next block as the file that its first line names."""
        text = self.next("yaml").text
        name = text.splitlines()[0].removeprefix("# ")
        (self.folder / name).write_text(text)

    def follow(self) -> None:
        """Run the next block, and compare what it prints with the lines that it shows."""
        block = self.blocks.pop(0)
        if block.language == "sh":
            self.shell(block.text.replace("\\\n", " "))
            return
        assert block.language == "console", block
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, *shown = part.replace("\\\n", " ").splitlines()
            printed = iter(self.run(command, codes=(0, 1)).splitlines())
            for line in shown:
                assert "..." in line or line in printed, f"{block.place}: not printed: {line}"

    def shell(self, text: str) -> None:
        """Run shell lines."""
        for line in text.splitlines():
            if line.endswith("&"):
                self._background(line.removesuffix("&"))
            elif "--watch" in line:
                self._first_line(line)
            else:
                self.run(line)

    def quoted(self, begin: str) -> None:
        """Run the command of a sentence."""
        (command,) = re.findall(rf"`({re.escape(begin)} [^`]+)`", self._text)
        self.run(command)

    def change(self, *pairs: tuple[str, str]) -> None:
        """Change shoal.yaml, each text once."""
        file = self.folder / "shoal.yaml"
        text = file.read_text()
        for old, new in pairs:
            assert text.count(old) == 1, (old, text)
            text = text.replace(old, new)
        file.write_text(text)

    def _background(self, command: str) -> None:
        """Start the port-forward, after the former one has ended with its pod."""
        if self._forward is not None:
            assert "lost connection to pod" in self._forward.communicate(timeout=120)[0]
        self._forward = self.spawn(command)
        assert self._forward.stdout is not None
        assert "Forwarding from" in self._forward.stdout.readline()

    def _first_line(self, command: str) -> None:
        """Run a command without an end until it prints a line."""
        process = self.spawn(command)
        assert process.stdout is not None and process.stdout.readline()
        process.kill()
        process.communicate()

    def status(self, *texts: str) -> bool:
        """Whether `shoal status` shows all texts for the model."""
        found = self.run("shoal status", codes=(0, 1)).partition("\nModels\n")[2]
        return all(text in found.partition("\n\n")[0] for text in texts)

    def replicas(self) -> int:
        return int(self.get("deployment chat -n serving")["spec"]["replicas"])

    def serves(self) -> bool:
        """Whether a gateway serves a completion."""
        pods = self.get("pods -n shoal -l app.kubernetes.io/component=gateway")["items"]
        url = f"http://{pods[0]['status']['podIP']}:8700/v1/completions"
        body = json.dumps({"model": "chat", "prompt": "x", "max_tokens": 1}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except OSError:  # It refuses the request, or its pod is being replaced.
            return False


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader with a cluster."""
    try:
        made = Reader(tmp_path)
    except NoTools as error:
        pytest.skip(f"skipped: {error}")
    try:
        made.start(["g6-0", "g6-1"], LABELS)
        yield made
    finally:
        made.end()


@pytest.mark.timeout(1200)
@pytest.mark.skipif(IN_A_POD, reason="the executor would use the cluster of this machine's pod")
def test_the_tutorial_runs_to_its_end(reader: Reader) -> None:
    inspect_cluster(reader)
    recommend(reader)
    scale(reader)
    pods(reader)
    leave(reader)
    assert not reader.blocks


def inspect_cluster(reader: Reader) -> None:
    """Steps 1 and 2."""
    reader.save()
    reader.follow()
    reader.follow()
    shown = reader.next("yaml").text
    written = (reader.folder / "shoal.yaml").read_text()
    assert shown in re.sub(r"\n\n+", "\n", written), written
    reader.says("Add `disaggregate: false` to the model")
    reader.change(
        ("    workload: {req_per_s: 1", "    disaggregate: false\n    workload: {req_per_s: 1")
    )
    reader.follow()


def recommend(reader: Reader) -> None:
    """Step 3. Nothing is written to the workload."""
    reader.says("It writes nothing to your workloads before step 4.")
    before = reader.get("deployment chat -n serving")["metadata"], reader.engine_pods()
    reader.follow()
    reader.follow()
    reader.says("`status` shows `0/1` ready and `recommended only`")
    reader.until(lambda: reader.status("0/1", "recommended only"))
    reader.follow()
    reader.says("From step 4 on, `svc/shoal-gateway` serves and counts requests.")
    assert not reader.serves()
    after = reader.get("deployment chat -n serving")["metadata"], reader.engine_pods()
    for one, other in zip(before, after, strict=True):
        assert one == other


def scale(reader: Reader) -> None:
    """Step 4."""
    reader.follow()
    reader.says("set `mode: act`, and `kubernetes.mode` of the pool to `scale`. Set `req_per_s: 3`")
    reader.change(
        ("mode: recommend\n", "mode: act\n"), ("mode: observe", "mode: scale"),
        ("req_per_s: 1", "req_per_s: 3"),
    )  # fmt: skip
    reader.engines.unlink()
    before = set(reader.engine_pods())
    reader.follow()
    reader.says("repeat both commands of step 3")
    again = next(block for block in blocks(PAGE) if "port-forward" in block.text)
    reader.shell("\n".join(again.text.splitlines()[:2]))
    reader.says("shows `2/3` and `1 starting`, then `3/3` and `steady`")
    reader.until(lambda: reader.status("2/3", "1 starting"))
    reader.engines.touch()
    reader.until(lambda: reader.status("3/3", "steady"))
    assert reader.replicas() == 3 and before < set(reader.engine_pods())
    reader.until(reader.serves)
    reader.follow()
    may = "kubectl auth can-i --as=system:serviceaccount:shoal:shoal-executor -n serving patch pods"
    assert reader.run(may) == "yes\n"
    kept = reader.engine_pods()
    reader.quoted("helm rollback shoal")
    reader.run("kubectl -n shoal rollout status deployment/shoal")
    assert reader.run(may, codes=(1,)) == "no\n"
    assert reader.engine_pods() == kept


def pods(reader: Reader) -> None:
    """Step 5."""
    reader.says("Set `kubernetes.mode` of the pool to `pods`")
    reader.change(("mode: scale", "mode: pods"))
    reader.save()
    reader.follow()
    reader.says("A pod `shoal-chat-...` appears.", "`shoal.dev/min` keeps the last one")
    reader.until(lambda: len(reader.own_pods()) == 3 and reader.replicas() == 1, 400)
    assert all(name.startswith("shoal-chat-") for name in reader.own_pods())
    reader.quoted("kubectl -n serving scale")
    reader.until(lambda: sorted(reader.engine_pods()) == sorted(reader.own_pods()))
    assert len(reader.own_pods()) == 3 and reader.serves()


def leave(reader: Reader) -> None:
    """Step 6."""
    before = reader.engine_pods()
    reader.follow()
    reader.says("All engines keep serving.")
    reader.until(lambda: not reader.get("pods -n shoal")["items"])
    assert reader.engine_pods() == before and len(before) == 3
    for pod in reader.get("pods -n serving")["items"]:
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8000/health") as found:
            assert found.status == 200
