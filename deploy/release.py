"""Build the packages of a release: wheel, sdist, SBOM and checksums.

    python deploy/release.py --out DIR [--repository URL] [--image TAG]

The environment must contain the setuptools of requirements-build.lock; nothing is downloaded.
`--repository` is the public address of the repository. It becomes the project's URLs, and the
README's links and pictures point to it. Wheel and sdist contain LICENSE, NOTICE, the licences of
vendored files and the SBOM (CycloneDX, from requirements.lock).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("autoscaler", "executors", "streams", "topics")
FILES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")
SBOM = "sbom.cdx.json"
_IMAGE_TOOLS = ("docker", "podman", "buildah")
_EPOCH = "315532800"
"""1980-01-01, the earliest time in a zip archive: equal sources give equal files."""
_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?://|#)([^)\s]+)\)")
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def absolute_links(readme: str, repository: str, tag: str) -> str:
    """`readme` with each relative link and picture as an address in `repository` at `tag`."""

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        return f"{picture}{text}({repository}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return _LINK.sub(absolute, readme)


def project_urls(repository: str) -> str:
    """The table of the project's addresses, to append to pyproject.toml."""
    urls = {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    return "\n[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items())


def sbom(lock: str, version: str) -> dict[str, object]:
    """The bill of materials (CycloneDX 1.6) of `lock`, the text of a lock file with hashes."""
    components: list[dict[str, object]] = []
    for entry in re.split(r"\n(?=[A-Za-z0-9])", lock):
        if pin := _PIN.match(entry):
            name, release = pin.groups()
            components.append(
                {
                    "type": "library",
                    "bom-ref": f"{name}=={release}",
                    "name": name,
                    "version": release,
                    "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{release}",
                    "properties": [
                        {"name": "shoal:locked-sha256", "value": digest}
                        for digest in _HASH.findall(entry)
                    ],
                }
            )
    product = {"type": "application", "bom-ref": "shoal", "name": "shoal", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
    }


def stage(folder: Path, repository: str) -> str:
    """Copy the sources of the packages to `folder`, with the SBOM and the addresses. The version
    of the project."""
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    project = (folder / "pyproject.toml").read_text()
    version = str(tomllib.loads(project)["project"]["version"])
    if repository:
        (folder / "pyproject.toml").write_text(project + project_urls(repository))
        readme = folder / "README.md"
        readme.write_text(absolute_links(readme.read_text(), repository, f"v{version}"))
    bill = sbom((ROOT / "requirements.lock").read_text(), version)
    (folder / SBOM).write_text(json.dumps(bill, indent=1) + "\n")
    (folder / "MANIFEST.in").write_text(f"include {SBOM}\n")
    return version


def build(folder: Path, out: Path) -> tuple[Path, Path]:
    """Wheel and sdist of the staged `folder`. SystemExit: the build failed."""
    made = []
    for kind in ("wheel", "sdist"):
        code = f"from setuptools import build_meta as b; b.build_{kind}({str(out)!r})"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=folder, capture_output=True, text=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH},
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(
                f"{done.stdout[-1000:]}{done.stderr[-2000:]}building the {kind} failed"
            )
        made += sorted(out.glob("*.whl" if kind == "wheel" else "*.tar.gz"))
    return made[0], made[1]


def add_sbom(wheel: Path, bill: bytes) -> None:
    """Add the SBOM to the wheel's `.dist-info/sboms` (PEP 770) and to its RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        entries = [(item, archive.read(item)) for item in archive.infolist()]
    record = next(item.filename for item, _ in entries if item.filename.endswith("/RECORD"))
    path = record.replace("/RECORD", f"/sboms/{SBOM}")
    digest = base64.urlsafe_b64encode(hashlib.sha256(bill).digest()).rstrip(b"=").decode()
    line = f"{path},sha256={digest},{len(bill)}\n".encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(path), bill, zipfile.ZIP_DEFLATED)
        for item, content in entries:
            archive.writestr(item, line + content if item.filename == record else content)


def build_image(tag: str, repository: str) -> None:
    """Build the image with the first tool that is installed. SystemExit: none is, or it failed."""
    tool = next((name for name in _IMAGE_TOOLS if shutil.which(name)), None)
    if tool is None:
        raise SystemExit(f"--image: none of {', '.join(_IMAGE_TOOLS)} is installed")
    done = subprocess.run(
        [tool, "build", "--build-arg", f"REPOSITORY={repository}",
         "-f", "deploy/image/Containerfile", "-t", tag, "."],
        cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"--image: {tool} ended with code {done.returncode}")


def checksums(files: Iterable[Path]) -> str:
    """One line a file, as `sha256sum --check` reads it."""
    return "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 after success, 2 for bad options; a failed step ends with its output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--repository", default="", help="https address of the repository")
    parser.add_argument("--image", metavar="TAG", help="build the image under this tag, too")
    options = parser.parse_args(argv)
    repository = options.repository.rstrip("/")
    if repository and not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+", repository):
        parser.error(f"--repository: {repository!r} is not allowed; allowed: https://HOST/PATH")
    out = options.out.resolve()
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out: {options.out} is not empty; allowed: a new or empty folder")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        version = stage(folder, repository)
        wheel, sdist = build(folder, out)
        shutil.copy(folder / SBOM, out / SBOM)
    add_sbom(wheel, (out / SBOM).read_bytes())
    (out / "SHA256SUMS").write_text(checksums([wheel, sdist, out / SBOM]))
    if options.image:
        build_image(options.image, repository)
    if not repository:
        print("without --repository: the packages name no URL, and README links stay relative")
    print(f"shoal {version}: {wheel.name}, {sdist.name}, {SBOM} and SHA256SUMS in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
