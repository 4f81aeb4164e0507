"""The simulated engine kind: its launch line. It does not import the engine, which runs in a
separate process.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.serving.engine_setup import Measurement, engine_startup_s
from executors.engines.engine_protocol import API_KEY, LaunchLine, LaunchSpec
from executors.engines.model_source import architecture
from executors.engines.simulated.launch_options import SimulatedProcess, launch_line
from topics.codec import write_value


@dataclass(frozen=True, slots=True)
class SimulatedKind(SimulatedProcess):
    """A simulated vLLM.

    quantization, max_num_seqs: None = the engine's default. fixed_startup_s: None = as predicted.
    measurements: the user's measurements, which determine the engine's speed for their model and
    GPU. args: arguments of vLLM; only arguments about memory have an effect.
    """

    quantization: str | None = None
    max_num_seqs: int | None = None
    fixed_startup_s: float | None = None
    measurements: tuple[Measurement, ...] = ()
    image: str = ""
    sleeps: bool = False
    args: tuple[str, ...] = ()

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        """`python -m executors.engines.simulated ...`."""
        options = {
            "--source": spec.source,
            "--gpu": spec.gpu,
            "--gpus": str(len(spec.gpus)),
            "--phase": spec.phase,
            "--shutdown-timeout": repr(spec.shutdown_timeout_s),
        }
        if self.quantization is not None:
            options["--quantization"] = self.quantization
        if self.args:
            options["--engine-args"] = write_value(self.args).decode()
        if self.max_num_seqs is not None:
            options["--max-num-seqs"] = str(self.max_num_seqs)
        if spec.kv_gb_s:
            options["--kv-gb-s"] = repr(spec.kv_gb_s)
        if spec.gang is not None:
            options["--gang"] = write_value(spec.gang).decode()
        if spec.adapters:
            options["--adapters"] = write_value(spec.adapters).decode()
        if self.measurements:
            options["--measurements"] = write_value(self.measurements).decode()
        env = {API_KEY: spec.api_key} if spec.api_key else {}
        if self.sleeps:
            env["VLLM_SERVER_DEV_MODE"] = "1"
        module = "executors.engines.simulated"
        return launch_line(module, spec, self.startup_s(spec), options, (*env.items(),))

    def startup_s(self, spec: LaunchSpec) -> float:
        """The configured start time, else the time that the planner's formula predicts."""
        if self.fixed_startup_s is not None:
            return spec.node_s + self.fixed_startup_s
        model = architecture(spec.source)
        layers = spec.gang.stages[spec.gang.rank].layers if spec.gang else 0
        startup_s = engine_startup_s(model, spec.gpu, len(spec.gpus), self.quantization, layers)
        return spec.node_s + startup_s
