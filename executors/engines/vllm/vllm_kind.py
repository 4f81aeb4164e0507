"""The vLLM engine kind: its launch line, from typed fields and the operator's profile.

Settings that the executor must know (addresses, ports, parallel sizes, KV transfer) come from typed
fields. The operator's own arguments follow and may not override them. Free text from a request, a
topic or a model's name never reaches argv. Facts about vLLM 0.32 and 0.33.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoscaler.serving.engine_setup import engine_startup_s, startable_sequences
from executors.engines.engine_protocol import API_KEY, LaunchLine, LaunchSpec, RoleSwitch
from executors.engines.http_api import HttpApi
from executors.engines.model_source import architecture
from topics.instance_ranks import GangRank
from topics.lora_adapters import declared_in_batch, in_batch, rank_limit

_INTERNAL_PORTS = 2  # vLLM searches upwards from VLLM_PORT for torch.distributed
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """KV hand-over through NIXL in both directions, so that an instance can serve any phase.
    device: location of the buffers, `cuda` or `cpu`. policy: reaction if a decode instance cannot
    fetch KV, `fail` or `recompute`. lease_s: how long a prefill instance holds KV.
    """

    device: str = "cuda"
    policy: str = "fail"
    lease_s: int = 30

    def config(self) -> str:
        """The value of --kv-transfer-config."""
        return json.dumps(
            {
                "kv_connector": "NixlConnector",
                "kv_role": "kv_both",
                "kv_buffer_device": self.device,
                "kv_load_failure_policy": self.policy,
                "kv_connector_extra_config": {"kv_lease_duration": self.lease_s},
            }
        )


@dataclass(frozen=True, slots=True)
class VllmKind(HttpApi):
    """One declared vLLM.

    executable: the `vllm` to start. weights: repositories and folders that may be loaded (a folder
    includes everything in it). args, env: the operator's profile. pipeline_parallel: number of
    stages; it divides the GPUs of an instance. layers: number of layers by stage, () = evenly.
    max_num_seqs: None = vLLM's default. declared_startup_s: None = as predicted. cpu: whether the
    engine runs without GPUs, on one core. image: container image with the executable. pipelines:
    whether instances may span nodes: "none", "same-slice" or "same-size" (one tensor-parallel size
    for all stages). sleeps: whether instances on one node may sleep instead of being stopped. This
    opens vLLM's development endpoints to every client that can reach the engine's port.
    """

    executable: str = "vllm"
    weights: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    quantization: str | None = None
    pipeline_parallel: int = 1
    layers: tuple[int, ...] = ()
    max_num_seqs: int | None = None
    kv_transfer: KvTransfer | None = None
    declared_startup_s: float | None = None
    declared_stop_s: float = 60.0
    cpu: bool = False
    image: str = ""
    pipelines: str = "none"
    sleeps: bool = False

    @property
    def ports(self) -> int:
        """Number of ports: HTTP, NIXL's side channel, and the ports of torch.distributed."""
        return 2 + _INTERNAL_PORTS

    @property
    def role_switch(self) -> RoleSwitch:
        """ROUTING with KV transfer in both directions, because an instance can then serve any phase
        without a restart; else RELAUNCH."""
        return RoleSwitch.ROUTING if self.kv_transfer else RoleSwitch.RELAUNCH

    @property
    def stop_s(self) -> float:
        """The declared stop time."""
        return self.declared_stop_s

    def startup_s(self, spec: LaunchSpec) -> float:
        """The declared start time, else the time that the planner's formula predicts."""
        if self.declared_startup_s is not None:
            return self.declared_startup_s
        model = architecture(spec.source)
        layers = spec.gang.stages[spec.gang.rank].layers if spec.gang else 0
        return engine_startup_s(model, spec.gpu, len(spec.gpus), self.quantization, layers)

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        """`vllm serve ...`. Raises ValueError for a `spec` that this engine does not support."""
        gang = spec.gang
        if gang is not None:
            self._check_gang(gang, spec.phase)
        elif spec.phase != "aggregated" and self.kv_transfer is None:
            raise ValueError(f"phase {spec.phase}: this engine declares no kv_transfer")
        weights = allowed_weights(spec.weights or spec.source, self.weights)
        options = {
            "--served-model-name": spec.model,
            "--host": spec.host,
            "--port": str(spec.port),
            "--max-model-len": str(spec.max_len),
            # Real engines run at speed 1, so domain seconds are real seconds.
            "--shutdown-timeout": str(max(0, round(spec.shutdown_timeout_s))),
            **(
                self._parallel_options(len(spec.gpus)) if gang is None else self._gang_options(gang)
            ),
        }
        if self.max_num_seqs is not None:
            options["--max-num-seqs"] = str(self._sequences(spec, self.max_num_seqs))
        if self.kv_transfer is not None and gang is None:
            options["--kv-transfer-config"] = self.kv_transfer.config()
        # KEY=VALUE in one word, so that a value may begin with a dash.
        words = [f"{key}={value}" for key, value in options.items()]
        words.append("--enable-prompt-tokens-details")  # usage names the cached prompt tokens
        if gang is not None and not gang.leads:
            words.append("--headless")  # this rank serves no HTTP
        if self.sleeps and gang is None:
            words.append("--enable-sleep-mode")
        loaded = [allowed_weights(one.weights, self.weights) for one in spec.adapters]
        words += self._adapter_words(spec, loaded)
        local = all(Path(one).is_absolute() for one in (weights, *loaded))
        argv = (self.executable, "serve", weights, *words, *self.args)
        return LaunchLine(argv, self._environment(spec, local))

    def _sequences(self, spec: LaunchSpec, declared: int) -> int:
        """`declared`, or fewer sequences if the memory holds the states of fewer."""
        if self.cpu or spec.gang is not None or self.pipeline_parallel > 1:
            return declared
        model = architecture(spec.source)
        return startable_sequences(
            model, spec.gpu, len(spec.gpus), declared, self.args, self.quantization
        )

    def _adapter_words(self, spec: LaunchSpec, loaded: Sequence[str]) -> list[str]:
        """Arguments for LoRA adapters, whose weights are `loaded`. All adapters stay in the host's
        memory; a batch may use as many as there are slots on the GPU."""
        if not spec.adapters:
            return []
        count = len(spec.adapters)
        slots = in_batch(self.args, count)
        words = ["--enable-lora", f"--max-lora-rank={rank_limit(spec.adapters)}"]
        if declared_in_batch(self.args) is None:
            words.append(f"--max-loras={slots}")
        if not any(arg.replace("_", "-").startswith("--max-cpu-loras") for arg in self.args):
            words.append(f"--max-cpu-loras={max(slots, count)}")
        if spec.gang is None or spec.gang.leads:  # only rank 0 serves model names
            modules = zip(spec.adapters, loaded, strict=True)
            words.append("--lora-modules")
            words += [
                json.dumps({"name": one.name, "path": path, "base_model_name": spec.model})
                for one, path in modules
            ]
        return words

    def _parallel_options(self, gpus: int) -> dict[str, str]:
        if gpus % self.pipeline_parallel:
            raise ValueError(f"{gpus} GPUs cannot be divided by {self.pipeline_parallel} stages")
        if self.cpu:
            return {}
        return {
            "--tensor-parallel-size": str(gpus // self.pipeline_parallel),
            "--pipeline-parallel-size": str(self.pipeline_parallel),
        }

    def _check_gang(self, gang: GangRank, phase: str) -> None:
        """Raise ValueError, which states the reason, for a gang that vLLM cannot run."""
        sizes = {stage.gpus for stage in gang.stages}
        if self.pipelines == "none":
            raise ValueError("an instance over several nodes: this engine declares no pipelines")
        if self.pipeline_parallel > 1:
            raise ValueError("an instance over several nodes: pipeline_parallel is for one node")
        if phase != "aggregated":
            allowed = "vLLM hands no KV over from pipelines; declare disaggregate: false"
            raise ValueError(f"phase {phase} over several nodes: {allowed}")
        if len(sizes) > 1:
            raise ValueError(f"stages of {sorted(sizes)} GPUs: vLLM has one size for all stages")

    def _gang_options(self, gang: GangRank) -> dict[str, str]:
        """Options of a gang: one stage per node. Global ranks number the GPUs of the first node,
        then of the next node, and so on."""
        address, _, port = gang.rendezvous.rpartition(":")
        return {
            "--tensor-parallel-size": "1" if self.cpu else str(gang.stages[0].gpus),
            "--pipeline-parallel-size": str(gang.size),
            "--nnodes": str(gang.size),
            "--node-rank": str(gang.rank),
            "--master-addr": address,
            "--master-port": port,
        }

    def _environment(self, spec: LaunchSpec, local: bool) -> tuple[tuple[str, str], ...]:
        own = {
            "VLLM_HOST_IP": spec.advertise,
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            # Disable redirects: an allowed host must not send the engine to a host that is not
            # allowed.
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        }
        if spec.gang is None:  # for a gang, the system chooses these ports
            own["VLLM_PORT"] = str(spec.ports[2])
        if local:
            own["HF_HUB_OFFLINE"] = "1"
        if spec.api_key:
            own[API_KEY] = spec.api_key
        layers = tuple(s.layers for s in spec.gang.stages) if spec.gang else self.layers
        if layers:
            own["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, layers))
        if self.kv_transfer is not None and spec.gang is None:
            own["VLLM_NIXL_SIDE_CHANNEL_HOST"] = spec.advertise
            own["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(spec.ports[1])
        if self.sleeps and spec.gang is None:
            own["VLLM_SERVER_DEV_MODE"] = "1"
        if self.cpu:
            own |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
            own |= {"UCX_TLS": "tcp,self,sm"}
            if spec.advertise.startswith("127."):
                own |= {"UCX_NET_DEVICES": "lo", "GLOO_SOCKET_IFNAME": "lo"}
        return (*own.items(), *self.env)


def allowed_weights(wanted: str, allowed: tuple[str, ...]) -> str:
    """`wanted`, if the operator allows it: a listed repository, a listed folder, or a path inside a
    listed folder.

    Raises ValueError for anything else, including a link that leads out of a listed folder.
    """
    if wanted.startswith(("/", ".", "~")):
        path = Path(wanted).expanduser().resolve()
        roots = [Path(root).expanduser().resolve() for root in allowed if not _is_repository(root)]
        if any(path == root or root in path.parents for root in roots):
            return str(path)
    elif _is_repository(wanted) and wanted in allowed:
        return wanted
    raise ValueError(f"weights {wanted!r} are not among the allowed ones: {', '.join(allowed)}")


def _is_repository(name: str) -> bool:
    return _REPOSITORY.match(name) is not None and not name.startswith(("/", ".", "~"))
