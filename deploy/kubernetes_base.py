"""Write the kustomize base from the Helm chart: deploy/kubernetes/base/shoal.yaml.

    python deploy/kubernetes_base.py [HELM]    # HELM: the program, by default helm of the tests

The base is the chart with its default values: mode observe, an embedded broker, the shoal.yaml from
the ConfigMap `shoal-config` and the broker's certificate from the Secret `shoal-broker`, which the
user's kustomization generates.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
CHART = ROOT / "deploy" / "helm" / "shoal"
BASE = ROOT / "deploy" / "kubernetes" / "base" / "shoal.yaml"
_HEAD = "# Written by `python deploy/kubernetes_base.py` from the Helm chart.\n"


def rendered(program: str = "") -> str:
    """The text of the base. CalledProcessError if Helm fails."""
    if not program:
        from tests.chart.helm_tools import tools

        program = str(tools() / "helm")
    argv = [program, "template", "shoal", str(CHART), "--namespace", "shoal", "--no-hooks",
            "--set", "config.existingConfigMap=shoal-config",
            "--set", "broker.existingSecret=shoal-broker"]  # fmt: skip
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return _HEAD + done.stdout.replace("app.kubernetes.io/managed-by: Helm", _MANAGER)


_MANAGER = "app.kubernetes.io/managed-by: kustomize"


if __name__ == "__main__":
    BASE.parent.mkdir(parents=True, exist_ok=True)
    BASE.write_text(rendered(*sys.argv[1:2]))
