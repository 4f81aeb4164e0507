"""Launch of a simulated engine: its GPU, and the measurements of its model."""

from __future__ import annotations

import orjson
import pytest

from autoscaler.performance import catalog
from autoscaler.performance.memory import adapter_bytes
from autoscaler.performance.profile import architecture_key
from autoscaler.serving.engine_setup import Measurement, engine_setup
from executors.engines.engine_protocol import LaunchSpec
from executors.engines.engine_registry import parse_engine
from executors.engines.simulated.engine_process import parse_measurements
from executors.engines.simulated.simulated_kind import SimulatedKind
from topics.checks import InvalidValue
from topics.codec import read_value
from topics.lora_adapters import Adapter
from topics.time_base import TimeBase

SOURCE = "meta-llama/Llama-3.1-8B"
SPEC = catalog.model(SOURCE)
SLOW = Measurement(
    architecture_key(SPEC), SPEC.weight_dtype, "L4", 1, 2.0, 3.0, 0.05, 4, "2026-11-20"
)


def spec(**more: float) -> LaunchSpec:
    return LaunchSpec(
        model="m", source=SOURCE, weights="", max_len=8192, phase="decode", gpu="L4",
        gpus=(0,), host="127.0.0.1", advertise="127.0.0.1", ports=(1,),
        time_base=TimeBase(1.0, 0, 0), launched_ms=0, shutdown_timeout_s=1.0, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_launch_line_carries_measurements_and_the_network() -> None:
    kind = parse_engine(
        "e", {"kind": "simulated", "measurements": orjson.loads(orjson.dumps([SLOW]))}
    )
    assert isinstance(kind, SimulatedKind)
    options = dict(word.split("=", 1) for word in kind.launch_line(spec(kv_gb_s=2.5)).argv[3:])
    assert options["--kv-gb-s"] == "2.5"
    assert parse_measurements(options["--measurements"]) == (SLOW,)


def test_a_measured_engine_takes_the_measured_time() -> None:
    usual, slow = (
        engine_setup(SOURCE, "L4", 1, "decode", 8192, None, None, 2.5, found)
        for found in ((), (SLOW,))
    )
    assert slow.times.decode_ms(4, 1000) == pytest.approx(3.0 * usual.times.decode_ms(4, 1000))
    assert usual.transfer_ms(1000) == pytest.approx(1000 * SPEC.kv_bytes_per_token / 2.5e9 * 1e3)


def test_the_provisioning_time_of_a_node_is_part_of_the_start() -> None:
    kind = SimulatedKind(fixed_startup_s=20.0)
    assert kind.startup_s(spec()) == 20.0
    assert kind.startup_s(spec(node_s=180.0)) == 200.0


def test_a_damaged_measurement_is_refused() -> None:
    with pytest.raises(InvalidValue):
        parse_engine("e", {"kind": "simulated", "measurements": [{"gpu": "L4"}]})


def test_adapters_reach_the_simulated_engine_and_its_memory() -> None:
    adapters = (Adapter("legal", "acme/legal", 64), Adapter("sql", "/srv/sql"))
    line = SimulatedKind().launch_line(spec(adapters=adapters))  # type: ignore[arg-type]
    options = dict(word.split("=", 1) for word in line.argv[3:])
    read = read_value(tuple[Adapter, ...], orjson.loads(options["--adapters"]))
    assert read == adapters
    plain, loaded = (
        engine_setup(SOURCE, "H100-SXM", 1, "aggregated", 8192, adapters=found)
        for found in ((), adapters)
    )
    lost = plain.limits.kv_tokens - loaded.limits.kv_tokens
    # The KV cache consists of whole blocks.
    block_bytes = 16 * SPEC.kv_bytes_per_token
    assert lost * SPEC.kv_bytes_per_token == pytest.approx(
        adapter_bytes(loaded.model, 1), abs=block_bytes
    )
