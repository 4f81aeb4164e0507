"""The launch line of an engine in a container, for both runtimes."""

from __future__ import annotations

import pytest

from executors.engines.engine_protocol import LaunchLine
from executors.node.containers import Container, container_line

LINE = LaunchLine(("vllm", "serve", "/srv/m", "--port=8000"), (("VLLM_API_KEY", "secret"),))


def words(runtime: str, weights: str = "/srv/m") -> tuple[str, ...]:
    names = ("VLLM_API_KEY", "SHOAL_LAUNCH", "PATH", "CUDA_VISIBLE_DEVICES")
    return container_line(
        LINE, runtime, "vllm/vllm-openai:v0.33.0", "1f0c", (2, 5), weights.split(), names
    ).argv


def test_an_engine_sees_its_gpus_its_weights_and_no_path_of_the_host() -> None:
    found = words("docker", "/srv/m /srv/adapter org/adapter")
    assert found[:2] == ("docker", "run")
    assert "--volume=/srv/adapter:/srv/adapter:ro" in found
    assert '--gpus="device=2,5"' in found
    assert "--volume=/srv/m:/srv/m:ro" in found
    assert {w for w in found if w.startswith("--env=")} == {
        "--env=VLLM_API_KEY", "--env=SHOAL_LAUNCH", "--env=SHOAL_CONTAINER",
        "--env=CUDA_VISIBLE_DEVICES=0,1",
    }  # fmt: skip
    at = found.index("vllm/vllm-openai:v0.33.0")
    assert found[at - 1 :] == (
        "--entrypoint=vllm", "vllm/vllm-openai:v0.33.0", "serve", "/srv/m", "--port=8000",
    )  # fmt: skip


def test_podman_names_gpus_one_by_one_and_a_repository_mounts_nothing() -> None:
    found = words("podman", "Qwen/Qwen3-32B")
    assert "--device=nvidia.com/gpu=2" in found
    assert "--device=nvidia.com/gpu=5" in found
    assert not [word for word in found if word.startswith("--volume")]


@pytest.mark.parametrize("variable", ["", "docker", "sh shoal-1", "docker "])
def test_a_container_needs_a_runtime_and_a_name(variable: str) -> None:
    assert Container.from_variable(variable) is None
    assert Container.from_variable("podman shoal-1") == Container("podman", "shoal-1")


def test_a_missing_runtime_does_not_count_as_a_stopped_container(monkeypatch) -> None:
    """The GPUs of the container stay taken, so no other engine starts on them."""
    monkeypatch.setenv("PATH", "/nowhere")
    container = Container("docker", "shoal-1")
    assert [container.remove() for _ in range(3)] == [False] * 3
