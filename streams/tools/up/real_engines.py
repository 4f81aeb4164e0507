"""Real engines for a run on this machine: vLLM for CPUs, with a tiny model without weights.

Holds getting the environment (built once, outside the clone) and the engines' section of the node
files. The two edges share no code: what stands in `executors` is asked for as a command.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streams.files.shoal_yaml import EngineSpec
from streams.files.user_errors import UserError

# From launch to ready; 16 to 50 s were measured on two cores.
_STARTUP_S = 45.0


@dataclass(frozen=True, slots=True)
class RealEngines:
    """environment: of the vLLM to start. weights: folder of the tiny model."""

    environment: Path
    weights: Path

    def section(self, engine: EngineSpec) -> Mapping[str, object]:
        """What a node file says of `engine`."""
        return {
            "kind": "vllm",
            "executable": str(self.environment / "bin" / "vllm"),
            "weights": [str(self.weights)],
            "args": list(engine.args),
            "max_num_seqs": engine.max_num_seqs,
            "startup_s": _STARTUP_S,
            "device": "cpu",
            "kv_transfer": {},
            "pipelines": engine.pipelines,
        }


def prepare(folder: Path) -> RealEngines:
    """Build what is missing, with progress on stderr; UserError where that is not possible."""
    environment = _ask("executors.engines.vllm.cpu_environment")
    weights = _ask("executors.engines.vllm.tiny_model", str(folder / "tiny"))
    return RealEngines(Path(environment), Path(weights))


def _ask(module: str, *options: str) -> str:
    argv = [sys.executable, "-m", module, *options]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError("--engine vllm: there is no vLLM to run; what is missing stands above")
    return done.stdout.strip()
