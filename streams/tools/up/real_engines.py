"""Real engines for a run on this machine: vLLM for CPUs, with a tiny model without weights.

This module prepares the environment (built once, outside the clone) and the engines' section of the
node files. It runs a program of `executors` as a command, because `streams` must not import
`executors`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streams.files.engines_section import EngineSpec
from streams.files.user_errors import UserError

# Seconds from launch to ready on a machine with two cores.
_STARTUP_S = 45.0


@dataclass(frozen=True, slots=True)
class RealEngines:
    """Settings of vLLM engines for a run. environment: folder of vLLM's Python environment.
    weights: folder of the tiny model."""

    environment: Path
    weights: Path

    def section(self, engine: EngineSpec) -> Mapping[str, object]:
        """The section of a node file for `engine`."""
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
    """Build missing parts, with progress on stderr. UserError: a part cannot be built."""
    environment = _ask("executors.engines.vllm.cpu_environment")
    weights = _ask("executors.engines.vllm.tiny_model", str(folder / "tiny"))
    return RealEngines(Path(environment), Path(weights))


def _ask(module: str, *options: str) -> str:
    argv = [sys.executable, "-m", module, *options]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(
            "--engine vllm: vLLM cannot run here; the lines above name the missing parts"
        )
    return done.stdout.strip()
