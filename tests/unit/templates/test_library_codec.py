"""The bytes of a library: round trip, refusals, and the inputs of its hash."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.templates.build_library import build_library
from autoscaler.templates.engine_filter import CORAL, VLLM, VLLM_PIPELINE
from autoscaler.templates.library import Library
from autoscaler.templates.library_codec import decode, encode, read_header
from autoscaler.templates.library_request import LibraryRequest, content_hash
from autoscaler.templates.throughput_table import throughput_table, uncertain_configs


@pytest.fixture(scope="module")
def request_() -> LibraryRequest:
    """A request for the full Coral library of Phi-4 decode on L4 and L40S nodes."""
    configs = tuple(NodeSlice(catalog.gpu(name), n) for name in ("L4", "L40S") for n in (1, 2, 4))
    return LibraryRequest(
        catalog.model("microsoft/phi-4"),
        Phase.DECODE,
        Slo(1200.0, 60.0),
        Lengths(1155.0, 211.0),
        configs,
        CORAL,
        default_profile().content_hash,
    )


@pytest.fixture(scope="module")
def library(request_: LibraryRequest) -> Library:
    profile = default_profile()
    return build_library(
        request_, throughput_table(request_, profile), uncertain_configs(request_, profile)
    )


def test_a_library_is_unchanged_after_a_round_trip(
    request_: LibraryRequest, library: Library
) -> None:
    """Every template keeps its placement. Encoding the same library again gives the same bytes."""
    data = encode(library)
    loaded = decode(data, request_, library.content_hash)
    assert len(loaded) > 5
    assert list(loaded.templates()) == list(library.templates())
    assert np.array_equal(loaded.node_counts, library.node_counts)
    assert loaded.visited == library.visited
    assert encode(loaded) == data


def test_the_header_holds_the_request(library: Library) -> None:
    header = read_header(encode(library))
    assert header.templates == len(library)
    assert header.content_hash == library.content_hash
    assert header.request["model"]["name"] == "microsoft/phi-4"
    assert header.request["slo"]["tpot_ms"] == 60.0


def test_a_library_of_another_request_is_refused(
    request_: LibraryRequest, library: Library
) -> None:
    """The message names the field that differs."""
    other = replace(request_, slo=Slo(1200.0, 50.0))
    requests = content_hash(other, throughput_table(other, default_profile()))
    with pytest.raises(InvalidValue, match=r"slo\.tpot_ms"):
        decode(encode(library), other, requests)


def test_a_library_from_another_performance_model_is_refused(
    request_: LibraryRequest, library: Library
) -> None:
    table = throughput_table(request_, default_profile()) * 0.99
    with pytest.raises(InvalidValue, match="performance model changed"):
        decode(encode(library), request_, content_hash(request_, table))


@pytest.mark.parametrize(
    "change",
    [
        {"phase": Phase.PREFILL},
        {"slo": Slo(1200.0, 61.0)},
        {"bucket": Lengths(1156.0, 211.0)},
        {"model": catalog.model("openai/gpt-oss-20b")},
        {"configs": (NodeSlice(catalog.gpu("L4"), 1),)},
        {"engine": VLLM},
        {"profile_hash": "another"},
        {"max_nodes": 5},
        {"max_memory_ratio": 11.0},
        {"utilisation": 0.7},
    ],
)
def test_the_hash_covers_every_input(request_: LibraryRequest, change: dict[str, object]) -> None:
    """With a fixed table, a change of any other field changes the hash."""
    table = np.ones((1, 1, 1))
    assert content_hash(replace(request_, **change), table) != content_hash(request_, table)


def test_damaged_bytes_are_refused_by_name(request_: LibraryRequest, library: Library) -> None:
    """Truncated bytes, bytes that are no archive, and flipped bits raise InvalidValue, never
    another exception.
    """
    data = encode(library)
    for broken in (b"", b"hello", data[: len(data) // 2], data[:200] + data[260:]):
        with pytest.raises(InvalidValue, match="library file"):
            decode(broken, request_, library.content_hash)
    for at in range(60, len(data), max(1, len(data) // 400)):
        flipped = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        try:
            loaded = decode(flipped, request_, library.content_hash)
        except InvalidValue:
            continue
        assert list(loaded.templates()) == list(
            library.templates()
        )  # the flipped bit has no meaning


def test_an_array_out_of_range_is_refused(request_: LibraryRequest, library: Library) -> None:
    """The error names a template whose layers do not add up to those of the model."""
    with np.load(io.BytesIO(encode(library))) as archive:
        arrays = {name: archive[name].copy() for name in archive.files}
    arrays["layers"][3, 0] += 1
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    with pytest.raises(InvalidValue, match="template 3"):
        decode(out.getvalue(), request_, library.content_hash)


def test_tables_that_cannot_be_used_are_refused_by_name(request_: LibraryRequest) -> None:
    """Such tables have another shape, or values that are not finite, negative, or rising with
    layers.
    """
    good = throughput_table(request_, default_profile())
    for value in (np.nan, np.inf, -1.0, float(good.max()) * 2):
        bad = good.copy()
        bad[1, 2, 5] = value
        with pytest.raises(InvalidValue, match=r"stages 2.*4xL4.*layers 6"):
            build_library(request_, bad)
    with pytest.raises(InvalidValue, match="throughput table"):
        build_library(request_, good[:, :3])


def test_an_impossible_library_request_is_refused(request_: LibraryRequest) -> None:
    first = request_.configs[0]
    for change, name in (
        ({"configs": ()}, "configs"),
        ({"configs": (first, first)}, "each node slice once"),
        ({"max_nodes": 7}, "max_nodes"),
        ({"max_memory_ratio": float("nan")}, "max_memory_ratio"),
        ({"phase": Phase.AGGREGATED, "engine": VLLM_PIPELINE}, "single-node"),
    ):
        with pytest.raises(InvalidValue, match=name):
            replace(request_, **change)
