"""Build a real control plane from Go modules once, outside of the clone.

    python -m tests.kubernetes.plane.build_plane

Prints the folder with the binaries. SHOAL_TEST_KUBERNETES names a folder that already has them. If
Go is missing, it exits with code 3 and one line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "1.34.1"
PARTS = ("kube-controller-manager", "kube-scheduler", "etcd")
NO_GO = 3


def plane_folder() -> Path:
    """The folder of the binaries, which may not exist yet."""
    given = os.environ.get("SHOAL_TEST_KUBERNETES", "")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else cache / "shoal" / f"kubernetes-{VERSION}"


def is_built(folder: Path) -> bool:
    """Whether the binaries are complete."""
    return all((folder / name).exists() for name in ("kube-apiserver", *PARTS))


def _module(folder: Path) -> str:
    """The go.mod: Kubernetes' own modules are replaced by their published versions."""
    found = subprocess.run(
        ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"],
        cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    text = Path(json.loads(found.stdout)["GoMod"]).read_text()
    language = re.search(r"^go (.*)$", text, re.MULTILINE)
    assert language is not None
    staged = sorted(set(re.findall(r"^\s*(k8s\.io/[\w\-]+) => \./staging", text, re.MULTILINE)))
    minor = VERSION.split(".", 1)[1]
    replaced = "".join(f"\t{name} => {name} v0.{minor}\n" for name in staged)
    return (
        f"module plane\n\ngo {language[1]}\n\n"
        f"require (\n\tk8s.io/kubernetes v{VERSION}\n)\n\nreplace (\n{replaced})\n"
    )


def build(folder: Path) -> None:
    """Build the binaries. CalledProcessError if Go fails."""
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("main.go"), source / "main.go")
    (source / "go.mod").write_text("module plane\n")
    (source / "go.mod").write_text(_module(source))
    subprocess.run(["go", "mod", "tidy"], cwd=source, check=True)
    at = "k8s.io/component-base/version"
    major, minor, _ = VERSION.split(".")
    flags = f"-s -w -X {at}.gitVersion=v{VERSION} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}"
    made = folder / "kube-apiserver.new"
    subprocess.run(
        ["go", "build", f"-ldflags={flags}", "-o", str(made), "."], cwd=source, check=True
    )
    made.replace(folder / "kube-apiserver")
    for name in PARTS:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("kube-apiserver")


def main() -> int:
    folder = plane_folder()
    if not is_built(folder):
        if shutil.which("go") is None:
            print("skipped: the Kubernetes tests build a control plane, and Go is not installed")
            return NO_GO
        print(f"building Kubernetes {VERSION} into {folder} (once, minutes)", file=sys.stderr)
        build(folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
