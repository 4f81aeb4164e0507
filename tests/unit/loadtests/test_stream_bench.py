"""The telemetry benchmark measures both ways in which a controller can read telemetry."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from loadtests import stream_bench


def test_the_steady_part_is_timed_without_the_time_for_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few hundred records come first. Then a second follows at a steady rate, with as many
    queries as a controller makes.
    """
    out = tmp_path / "out.json"
    size = ["--records", "200", "--models", "5", "--gateways", "4", "--per-s", "300"]
    assert stream_bench.main([*size, "--for-s", "1", "--json", str(out)]) == 0
    found = orjson.loads(out.read_bytes())
    assert min(found.values()) > 0
    shown = capsys.readouterr().out
    assert "looks, when the controller would" in shown and "a look every 300 records" in shown
