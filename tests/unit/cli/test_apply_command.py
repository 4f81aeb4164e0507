"""`shoal apply`: the records that it publishes for a file, and the files that it refuses as a
whole.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from streams.cli.apply import changes_of, declared_texts
from streams.cli.main import main
from streams.files.shoal_yaml import load_config, parse_service

SAMPLE = Path(__file__).parent.parent / "files" / "sample.yaml"
CONFIG = """
regions: {eu: {l4: {gpu: L4, max: 3, price: 0.85}}}
models:
  mini:
    source: openai/gpt-oss-20b  # small
    slo: {ttft: 2s, tpot: 80ms}
    workload: {req_per_s: 1.5, input: 200, output: 60}
  tiny: {source: meta-llama/Llama-3.1-8B-Instruct, slo: {ttft: 1s, tpot: 50ms}, max_len: 8192}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "shoal.yaml"
    file.write_text(CONFIG)
    return file


@pytest.mark.parametrize("which", ["own", "sample"])
def test_published_sections_give_the_services_that_the_file_declares(
    path: Path, which: str
) -> None:
    """The test reads each section back without the rest of the file."""
    file = path if which == "own" else SAMPLE
    config, texts = load_config(file), declared_texts(file)
    assert list(texts) == [service.model for service in config.cluster.services]
    for service in config.cluster.services:
        assert parse_service(config, service.model, texts[service.model]) == service


def test_equal_values_in_another_layout_are_no_change(path: Path) -> None:
    """A record that cannot be read is replaced."""
    config, wanted = load_config(path), declared_texts(path)
    same = '{"source": "openai/gpt-oss-20b", "slo": {"tpot": "0.08s", "ttft": "2000ms"}, ' + (
        '"workload": {"output": 60, "input": 200, "req_per_s": 1.5}}'
    )
    assert changes_of(config, wanted, {}) == {"mini": "added", "tiny": "added"}
    assert changes_of(config, wanted, wanted) == {"mini": "unchanged", "tiny": "unchanged"}
    assert changes_of(config, wanted, {"mini": same, "old": same}) == {
        "mini": "unchanged",
        "tiny": "added",
        "old": "withdrawn",
    }
    for other in (same.replace("1.5", "1.6"), "", "{"):
        assert changes_of(config, wanted, {"mini": other})["mini"] == "changed"


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("ttft: 2s", "tfft: 2s", "shoal.yaml:6: models.mini.slo.tfft"),
        ("max_len: 8192", "max_len: 8", "models.tiny.max_len"),
        ("regions:", "kafka: nowhere\nregions:", "nowhere"),
    ],
)
def test_a_file_with_one_error_is_refused_as_a_whole(
    path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, named: str
) -> None:
    path.write_text(CONFIG.replace(before, after))
    assert main(["apply", "--config", str(path)]) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert said.out == ""


def test_an_unreachable_broker_gives_one_error_line(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        assert main(["apply", "--config", str(path), "--broker", address]) == 2
    said = capsys.readouterr().err
    assert address in said
    assert len(said.strip().splitlines()) == 1
    assert main(["apply", "--config", str(path), "--url", f"http://{address}"]) == 2
    assert f"--url http://{address}: no controller answers" in capsys.readouterr().err
