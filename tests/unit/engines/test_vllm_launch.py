"""Arguments and environment variables of vLLM launches, and the settings that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from executors.engines.engine_protocol import LaunchSpec, RoleSwitch
from executors.engines.engine_registry import parse_engine
from executors.engines.vllm.vllm_kind import KvTransfer, VllmKind, allowed_weights
from topics.checks import InvalidValue
from topics.instance_ranks import GangRank, GangStage
from topics.lora_adapters import Adapter
from topics.time_base import TimeBase


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights" / "llama"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def spec(weights: Path) -> LaunchSpec:
    return LaunchSpec(
        model="chat", source="meta-llama/Llama-3.1-8B", weights=str(weights),
        max_len=4096, phase="decode", gpu="H100-SXM", gpus=(2, 3, 6, 7), host="10.0.0.5",
        advertise="10.0.0.5", ports=(9000, 9001, 9002, 9003),
        time_base=TimeBase(1.0, 0, 0), launched_ms=0, shutdown_timeout_s=20.0, api_key="s3cret",
    )  # fmt: skip


def test_the_launch_line_is_built_from_validated_values(weights: Path, spec: LaunchSpec) -> None:
    """The line has addresses, ports, parallel sizes and KV transfer. The operator's arguments
    follow.
    """
    kind = VllmKind(
        executable="/opt/vllm/bin/vllm", weights=(str(weights.parent),),
        args=("--quantization=fp8",),
        pipeline_parallel=2, layers=(20, 12), max_num_seqs=64, kv_transfer=KvTransfer(lease_s=40),
    )  # fmt: skip
    line = kind.launch_line(spec)
    assert line.argv[:3] == ("/opt/vllm/bin/vllm", "serve", str(weights))
    assert "--enable-prompt-tokens-details" in line.argv
    options = dict(word.split("=", 1) for word in line.argv[3:] if "=" in word)
    transfer = json.loads(options.pop("--kv-transfer-config"))
    assert transfer["kv_connector_extra_config"] == {"kv_lease_duration": 40}
    assert (transfer["kv_role"], transfer["kv_buffer_device"]) == ("kv_both", "cuda")
    assert options == {
        "--served-model-name": "chat", "--host": "10.0.0.5", "--port": "9000",
        "--max-model-len": "4096", "--shutdown-timeout": "20", "--tensor-parallel-size": "2",
        "--pipeline-parallel-size": "2", "--max-num-seqs": "64", "--quantization": "fp8",
    }  # fmt: skip
    env = dict(line.env)
    assert env["VLLM_PP_LAYER_PARTITION"] == "20,12"
    assert env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "9001"
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == env["VLLM_HOST_IP"] == "10.0.0.5"
    assert env["VLLM_PORT"] == "9002"
    assert (env["HF_HUB_OFFLINE"], env["VLLM_NO_USAGE_STATS"]) == ("1", "1")


def test_the_engine_key_is_only_in_the_environment(weights: Path, spec: LaunchSpec) -> None:
    kind = VllmKind(weights=(str(weights),), kv_transfer=KvTransfer())
    line = kind.launch_line(spec)
    assert dict(line.env)["VLLM_API_KEY"] == "s3cret"
    assert "s3cret" not in " ".join(line.argv)
    assert not any("trust" in word for word in line.argv)


def test_weights_come_only_from_the_allow_list(tmp_path: Path, weights: Path) -> None:
    """A listed folder allows its content, except links that lead out of it. Repositories are listed
    by name.
    """
    allowed = (str(weights.parent), "org/model")
    assert allowed_weights(str(weights), allowed) == str(weights)
    assert allowed_weights("org/model", allowed) == "org/model"
    link = weights.parent / "out"
    link.symlink_to("/etc")
    for wanted in (
        "org/other", "org/model/../other", "/etc", f"{weights}/../../secret", str(link), "",
        "--help", str(tmp_path / "weights-of-another"), "~root", "s3://bucket/model",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="allowed"):
            allowed_weights(wanted, allowed)


def test_unsupported_roles_and_gpu_counts_are_refused_at_launch(
    weights: Path, spec: LaunchSpec
) -> None:
    """Such are roles without KV transfer, and GPU counts that the stages do not divide."""
    plain = VllmKind(weights=(str(weights),))
    with pytest.raises(ValueError, match="kv_transfer"):
        plain.launch_line(spec)
    assert plain.launch_line(replace(spec, phase="aggregated")).argv
    assert plain.role_switch is RoleSwitch.RELAUNCH
    stages = VllmKind(weights=(str(weights),), pipeline_parallel=3, kv_transfer=KvTransfer())
    assert stages.role_switch is RoleSwitch.ROUTING
    with pytest.raises(ValueError, match="3 stages"):
        stages.launch_line(spec)


def test_sleep_mode_and_its_paths_exist_only_with_a_declared_standby(
    weights: Path, spec: LaunchSpec
) -> None:
    """A client that can reach the sleep paths can stop an engine."""
    for sleeps in (True, False):
        kind = VllmKind(weights=(str(weights),), kv_transfer=KvTransfer(), sleeps=sleeps)
        line = kind.launch_line(spec)
        assert ("--enable-sleep-mode" in line.argv) is sleeps
        assert ("VLLM_SERVER_DEV_MODE" in dict(line.env)) is sleeps


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"args": ["--host=0.0.0.0"]}, "--host"),
        ({"args": ["--quantization", "fp8", "--api_key=x"]}, "--api_key"),
        ({"args": ["--tensor-parallel=8"]}, "--tensor-parallel"),
        ({"args": ["--data-parallel-size=2"]}, "--data-parallel"),
        ({"args": ["--kv-transfer=x"]}, "--kv-transfer"),
        ({"args": "--enforce-eager"}, "args"),
        ({"args": [5]}, r"args\[0\]"),
        ({"env": {"lower": "x"}}, "lower"),
        ({"env": {"PATH": 5}}, "PATH"),
        ({"layers": [16, 16]}, "layers"),
        ({"pipeline_parallel": 2, "layers": [32, 0]}, "layers"),
        ({"pipeline_parallel": 0}, "pipeline_parallel"),
        ({"kv_transfer": {"policy": "hope"}}, "policy"),
        ({"kv_transfer": {"connector": "x"}}, "connector"),
        ({"quantization": "int3"}, "quantization"),
        ({"device": "tpu"}, "device"),
        ({"startup_s": -1}, "startup_s"),
        ({"image": 5}, "image"),
        ({"sleep": "yes"}, "sleep"),
        ({"sleep": True, "device": "cpu"}, "sleep"),
        ({"args": ["--enable-sleep-mode"]}, "--enable-sleep-mode"),
    ],
)
def test_an_invalid_section_is_refused_by_name(section: dict[str, object], named: str) -> None:
    """The error is one line with the field, the value and the allowed values."""
    with pytest.raises(InvalidValue, match=named):
        parse_engine("engines.real", {"kind": "vllm", "weights": ["org/model"], **section})


def test_arguments_of_the_operator_are_passed_unchanged() -> None:
    """This includes `--trust-remote-code`, which the executor never adds itself."""
    section = {
        "kind": "vllm", "weights": ["org/model"], "kv_transfer": {"policy": "recompute"},
        "args": ["--trust-remote-code", "--model-impl=vllm", "--gpu-memory-utilization", "0.8"],
        "env": {"VLLM_LOGGING_LEVEL": "INFO"},
    }  # fmt: skip
    kind = parse_engine("engines.real", section)
    assert isinstance(kind, VllmKind)
    assert kind.args[0] == "--trust-remote-code"
    assert kind.kv_transfer == KvTransfer("cuda", "recompute", 30)
    assert kind.env == (("VLLM_LOGGING_LEVEL", "INFO"),)


def test_an_engine_has_no_more_sequences_than_blocks_for_their_states(
    weights: Path, spec: LaunchSpec
) -> None:
    """vLLM refuses to start a hybrid model with more sequences than state blocks."""
    kind = VllmKind(weights=(str(weights),), max_num_seqs=256)
    one = replace(spec, phase="aggregated", gpu="L40S", gpus=(0,))
    counts = {}
    for source in ("Qwen/Qwen3.5-27B-FP8", "Qwen/Qwen3-8B"):
        line = kind.launch_line(replace(one, source=source, weights=str(weights)))
        word = next(w for w in line.argv if w.startswith("--max-num-seqs="))
        counts[source] = int(word.partition("=")[2])
    assert 100 < counts["Qwen/Qwen3.5-27B-FP8"] < 200
    assert counts["Qwen/Qwen3-8B"] == 256


def gang(rank: int, *gpus: int) -> GangRank:
    stages = tuple(
        GangStage("H100-SXM", count, layers) for count, layers in zip(gpus, (20, 12), strict=True)
    )
    return GangRank("i-0", rank, stages, "10.0.0.5:9004")


@pytest.mark.parametrize("rank", [0, 1])
def test_each_node_of_a_gang_runs_one_pipeline_stage(
    weights: Path, spec: LaunchSpec, rank: int
) -> None:
    """Tensor parallelism stays within a node. Only rank 0 serves requests, and no KV is
    transferred.
    """
    kind = VllmKind(
        weights=(str(weights),), kv_transfer=KvTransfer(), pipelines="same-size", max_num_seqs=8
    )
    line = kind.launch_line(replace(spec, phase="aggregated", gang=gang(rank, 4, 4)))
    options = dict(w.split("=", 1) for w in line.argv[3:] if "=" in w)
    assert options == {
        "--served-model-name": "chat", "--host": "10.0.0.5", "--port": "9000",
        "--max-model-len": "4096", "--shutdown-timeout": "20", "--max-num-seqs": "8",
        "--tensor-parallel-size": "4", "--pipeline-parallel-size": "2", "--nnodes": "2",
        "--node-rank": str(rank), "--master-addr": "10.0.0.5", "--master-port": "9004",
    }  # fmt: skip
    assert ("--headless" in line.argv) is (rank == 1)
    env = dict(line.env)
    assert env["VLLM_PP_LAYER_PARTITION"] == "20,12"
    assert not any("NIXL" in name for name in env)
    assert "VLLM_PORT" not in env  # vLLM's port search would reach the rendezvous port


@pytest.mark.parametrize(
    ("kind", "phase", "stages", "why"),
    [
        (VllmKind(), "aggregated", (4, 4), "declares no pipelines"),
        (VllmKind(pipelines="same-size"), "prefill", (4, 4), "disaggregate: false"),
        (VllmKind(pipelines="same-size"), "aggregated", (4, 2), "one size for all stages"),
        (VllmKind(pipelines="same-size", pipeline_parallel=2), "aggregated", (4, 4), "one node"),
    ],
)
def test_a_gang_that_vllm_cannot_run_is_refused(
    weights: Path, spec: LaunchSpec, kind: VllmKind, phase: str, stages: tuple[int, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        replace(kind, weights=(str(weights),)).launch_line(
            replace(spec, phase=phase, gang=gang(0, *stages))
        )


SQL = Adapter("sql", "acme/sql-lora", 40)


def test_adapters_are_loaded_under_their_names(weights: Path, spec: LaunchSpec) -> None:
    """All stay in the host's memory; the GPU has slots for at most eight."""
    own = Adapter("legal", str(weights / "legal"))
    many = tuple(Adapter(f"a{n}", "acme/sql-lora") for n in range(10))
    allowed = (str(weights), "acme/sql-lora")
    kind = VllmKind(weights=allowed, kv_transfer=KvTransfer())
    argv = kind.launch_line(replace(spec, adapters=(own, SQL))).argv
    options = {word.partition("=")[0]: word.partition("=")[2] for word in argv[3:]}
    assert options["--max-lora-rank"] == "64"
    assert (options["--max-loras"], options["--max-cpu-loras"]) == ("2", "2")
    at = argv.index("--lora-modules")
    assert [json.loads(word) for word in argv[at + 1 : at + 3]] == [
        {"name": "legal", "path": str(weights / "legal"), "base_model_name": "chat"},
        {"name": "sql", "path": "acme/sql-lora", "base_model_name": "chat"},
    ]
    assert "--enable-lora" in argv
    argv = kind.launch_line(replace(spec, adapters=many)).argv
    assert {"--max-loras=8", "--max-cpu-loras=10"} <= set(argv)
    assert not any("lora" in word for word in kind.launch_line(spec).argv)


def test_the_operator_decides_how_many_adapters_are_in_a_batch(
    weights: Path, spec: LaunchSpec
) -> None:
    args = ("--max-loras=3", "--max-cpu-loras=9")
    kind = VllmKind(weights=(str(weights), "acme/sql-lora"), args=args, kv_transfer=KvTransfer())
    argv = kind.launch_line(replace(spec, adapters=(SQL,))).argv
    assert [word for word in argv if word.startswith(("--max-loras", "--max-cpu"))] == [*args]


def test_an_adapter_comes_only_from_the_allow_list(weights: Path, spec: LaunchSpec) -> None:
    kind = VllmKind(weights=(str(weights),), kv_transfer=KvTransfer())
    with pytest.raises(ValueError, match="acme/sql-lora"):
        kind.launch_line(replace(spec, adapters=(SQL,)))


def test_an_adapter_from_a_repository_may_be_downloaded(weights: Path, spec: LaunchSpec) -> None:
    kind = VllmKind(weights=(str(weights), "acme/sql-lora"), kv_transfer=KvTransfer())
    assert "HF_HUB_OFFLINE" not in dict(kind.launch_line(replace(spec, adapters=(SQL,))).env)


def test_only_the_rank_that_serves_http_names_the_adapters(weights: Path, spec: LaunchSpec) -> None:
    stage = GangStage("H100-SXM", 4, 16)
    leader = GangRank("g", 0, (stage, stage), "10.0.0.5:9000")
    kind = VllmKind(weights=(str(weights), "acme/sql-lora"), pipelines="same-slice")
    wanted = replace(spec, phase="aggregated", adapters=(SQL,))
    argv = kind.launch_line(replace(wanted, gang=leader)).argv
    other = kind.launch_line(replace(wanted, gang=replace(leader, rank=1))).argv
    assert "--lora-modules" in argv
    assert "--lora-modules" not in other
    assert "--enable-lora" in other
