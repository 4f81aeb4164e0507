"""A real Prometheus for tests, with samples of the past or a scrape configuration."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streams.tools.up.host_resources import free_port


@contextmanager
def running_prometheus(
    binaries: Path, folder: Path, samples: str = "", config: str = "{}\n"
) -> Iterator[str]:
    """The address of a running Prometheus in `folder`.

    samples: OpenMetrics text with times, which the server stores. config: text of prometheus.yml.
    """
    data = folder / "data"
    if samples:
        dump = folder / "samples.om"
        dump.write_text(samples)
        subprocess.run(
            [binaries / "promtool", "tsdb", "create-blocks-from", "openmetrics", dump, data],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    port = free_port()
    (folder / "prometheus.yml").write_text(config)
    process = subprocess.Popen(
        [
            binaries / "prometheus", f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}",
            "--storage.tsdb.retention.time=100y",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/-/ready", timeout=1)  # noqa: S310
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)
