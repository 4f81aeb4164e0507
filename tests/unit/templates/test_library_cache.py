"""Template libraries are built once and then loaded from disk. A cache error never stops the
program.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.templates.engine_filter import CORAL, VLLM_PIPELINE
from autoscaler.templates.library_codec import decode
from autoscaler.templates.library_request import LibraryRequest, content_hash
from autoscaler.templates.required_libraries import required_library_requests
from autoscaler.templates.throughput_table import throughput_table
from streams.files import library_store
from streams.files.library_store import SUFFIX, cache_folder, load_or_build


@pytest.fixture
def requests() -> list[LibraryRequest]:
    configs = tuple(NodeSlice(catalog.gpu("L4"), n) for n in (1, 2, 4))
    prefill = LibraryRequest(
        catalog.model("microsoft/phi-4"),
        Phase.PREFILL,
        Slo(1200.0, 60.0),
        Lengths(1155.0, 211.0),
        configs,
        CORAL,
        default_profile().content_hash,
    )
    return [prefill, replace(prefill, phase=Phase.DECODE)]


def test_a_stored_library_is_not_built_again(
    requests: list[LibraryRequest], tmp_path: Path
) -> None:
    first = load_or_build(requests, default_profile(), tmp_path)
    second = load_or_build(requests, default_profile(), tmp_path)
    assert (first.built, second.built) == (2, 0)
    assert first.notices == second.notices == ()
    for built, loaded in zip(first.libraries, second.libraries, strict=True):
        assert list(built.templates()) == list(loaded.templates())
    assert len(list(tmp_path.iterdir())) == 2


def test_another_slo_needs_another_library(requests: list[LibraryRequest], tmp_path: Path) -> None:
    load_or_build(requests[:1], default_profile(), tmp_path)
    other = replace(requests[0], slo=Slo(700.0, 60.0))
    assert load_or_build([other], default_profile(), tmp_path).built == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_file_is_rebuilt_with_a_notice(
    requests: list[LibraryRequest], tmp_path: Path
) -> None:
    good = load_or_build(requests, default_profile(), tmp_path).libraries
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    again = load_or_build(requests, default_profile(), tmp_path)
    assert again.built == 2
    assert len(again.notices) == 2
    assert "built again" in again.notices[0]
    assert [len(library) for library in again.libraries] == [len(library) for library in good]
    assert load_or_build(requests, default_profile(), tmp_path).built == 0


def test_an_unusable_cache_folder_gives_only_a_notice(
    requests: list[LibraryRequest], tmp_path: Path
) -> None:
    """A file has the name of the cache folder. The libraries are still built."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    found = load_or_build(requests, default_profile(), blocked / "cache")
    assert len(found.libraries) == 2
    assert any("not kept" in notice for notice in found.notices)


def test_a_file_of_another_request_is_refused(
    requests: list[LibraryRequest], tmp_path: Path
) -> None:
    load_or_build(requests[:1], default_profile(), tmp_path)
    (path,) = tmp_path.iterdir()
    other = replace(requests[0], slo=Slo(1100.0, 60.0))
    data, profile = path.read_bytes(), default_profile()
    own, another = (content_hash(r, throughput_table(r, profile)) for r in (requests[0], other))
    assert len(decode(data, requests[0], own)) > 0
    with pytest.raises(InvalidValue, match=r"slo\.ttft_ms"):
        decode(data, other, another)


def test_the_cache_drops_the_least_recently_used_library(
    requests: list[LibraryRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, name in ((300, "old"), (200, "older-but-used"), (100, "new")):
        path = tmp_path / f"{name}{SUFFIX}"
        path.write_bytes(b"x" * 4000)
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    monkeypatch.setattr(library_store, "MOST_BYTES", 12_000)
    load_or_build(requests[:1], default_profile(), tmp_path)
    names = {path.name.removesuffix(SUFFIX) for path in tmp_path.iterdir()}
    assert "old" not in names
    assert {"older-but-used", "new"} < names


def test_the_cache_folder_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XDG_CACHE_HOME counts if its path is absolute, as XDG specifies. Otherwise the cache is in
    ~/.cache.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "shoal" / "libraries"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "shoal" / "libraries"


def test_a_cluster_needs_one_library_per_service_and_phase() -> None:
    """A library has the pools in the service's regions, with slices up to the node's size."""
    l4, h100 = catalog.gpu("L4"), catalog.gpu("H100")
    pools = (
        Pool("us", "l4", l4, 2, 8, Market.ON_DEMAND, 1.0),
        Pool("us", "l4", l4, 2, 8, Market.SPOT, 0.4),
        Pool("eu", "h100", h100, 8, 2, Market.OWNED, 0.0),
    )
    services = (
        Service("a", catalog.model("Qwen/Qwen3-8B"), Slo(500.0, 30.0), regions=("us",)),
        Service("b", catalog.model("Qwen/Qwen3-32B"), Slo(900.0, 50.0)),
    )
    found = required_library_requests(Cluster(pools, services), "p")
    assert [(r.model.name, r.phase) for r in found] == [
        (model, phase) for model in ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B") for phase in Phase
    ]
    assert [c.name for c in found[0].configs] == ["1xL4", "2xL4"]
    assert [c.name for c in found[3].configs] == [
        "1xL4", "2xL4", "1xH100-SXM", "2xH100-SXM", "4xH100-SXM", "8xH100-SXM",
    ]  # fmt: skip
    pipelines = required_library_requests(Cluster(pools, services), "p", VLLM_PIPELINE)
    assert {r.phase for r in pipelines} == {Phase.PREFILL, Phase.DECODE}
