"""shoal.yaml is read strictly. Every error names the place and the allowed values."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Market, Mode
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError

SHIPPED = resources.files("streams").joinpath("data", "demo.yaml").read_text(encoding="utf-8")
DEMO = Path(__file__).with_name("sample.yaml").read_text(encoding="utf-8")


def refusal(folder: Path, text: str | bytes) -> str:
    """The error message for `text` as the content of a shoal.yaml."""
    path = folder / "shoal.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        load_config(path)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{folder}/", "")


def test_the_example_has_three_models_on_three_gpu_types_in_two_regions(tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(SHIPPED)
    config = load_config(path)
    cluster = config.cluster
    assert config.mode is Mode.ACT
    assert len(cluster.services) == 3
    assert len({pool.gpu.name for pool in cluster.pools}) == 3
    assert {pool.region for pool in cluster.pools} == {"us-east", "eu-west"}


def test_a_rented_pool_with_a_spot_price_becomes_two_pools(tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(DEMO)
    markets = {
        p.market: p for p in load_config(path).cluster.pools if p.id.startswith("eu-west/l4/")
    }
    assert markets[Market.ON_DEMAND].price_usd_per_h == 3.40
    assert markets[Market.SPOT].price_usd_per_h == 1.28
    assert markets[Market.SPOT].max_nodes == 4


def test_an_engine_with_fp8_halves_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(DEMO)
    chat = load_config(path).cluster.service("chat")
    path.write_text(DEMO.replace("    engine: fp8\n", "", 1))
    plain = load_config(path).cluster.service("chat")
    assert chat.architecture.weight_dtype == "fp8"
    assert chat.architecture.weight_bytes == pytest.approx(
        plain.architecture.weight_bytes / 2, rel=0.05
    )


def test_an_engine_may_have_no_arguments(tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(DEMO.replace("args: [--quantization=fp8]", "max_num_seqs: 128"))
    assert load_config(path).cluster.service("chat").architecture.weight_dtype == "bf16"


@pytest.mark.parametrize(
    "args", ["--quantization, fp8", "--enforce-eager, -q, fp8", "-q=fp8, --enforce-eager"]
)
def test_the_quantization_option_can_be_two_words(args: str, tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(DEMO.replace("--quantization=fp8", args))
    assert load_config(path).cluster.service("chat").architecture.weight_dtype == "fp8"


@pytest.mark.parametrize(
    ("args", "said"),
    [("--quantization, int3", "'int3'"), ("--quantization=", "''"), ("fp8, --quantization", "''")],
)
def test_an_unknown_quantization_is_refused(args: str, said: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, DEMO.replace("--quantization=fp8", args))
    start = (
        f"shoal.yaml:40: engines.fp8.args: --quantization: {said} is not allowed; allowed: fp8, "
    )
    assert message.startswith(start)


def test_the_default_mode_is_recommend(tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(DEMO.replace("mode: act\n", ""))
    assert load_config(path).cluster.services[0].mode is Mode.RECOMMEND


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gpu: L4,", "gpu: L5,", "shoal.yaml:14: regions.eu-west.l4.gpu: 'L5'"),
        ("gpu: L4,", "gpu: L5,", "did you mean L4?"),
        ("ttft: 2s", "ttft: -2s", "shoal.yaml:21: models.chat.slo.ttft: '-2s'"),
        ("tpot: 60ms", "tpot: 60", "a duration with its unit"),
        ("  us-east:", " us-east:", "its indentation fits no line above"),
        ("regions:", "regions: [a", "the [ on line"),
        ("min: 1", "mim: 1", "shoal.yaml:23: models.chat.mim: unknown key; did you mean min?"),
        ("max: 3", "mx: 3", "regions.us-east.l40s.mx: unknown key; did you mean max?"),
        ("regions:", "regoins:", "regoins: unknown key; did you mean regions?"),
        ("  mini:", "  chat:", "shoal.yaml:32: models.chat: is given twice (first in line 18)"),
        ("price: 7.20", "price: .nan", "regions.us-east.l40s.price: nan"),
        ("price: 7.20", "price: .inf", "regions.us-east.l40s.price: inf"),
        ("price: 7.20", "price: -1", "regions.us-east.l40s.price: -1"),
        ("utilization: 0.8", "utilization: 80", "defaults.utilization: 80"),
        ("percentile: 95", "percentile: 5", "a percentile from 50 to 100"),
        ("mode: act", "mode: acct", "mode: 'acct' is not allowed"),
        ("engine: fp8", "engine: fp9", "did you mean fp8?"),
        ("per_node: 8", "per_node: 17", "1 to 16"),
        ("share: 0.25", "share: yes", "models.chat.share: True"),
        (
            "source: openai/gpt-oss-20b",
            "source: openai/gpt-oss-21b",
            "did you mean openai/gpt-oss-20b",
        ),
        ("owned: true", "owned: true, price: 3", "an owned pool has none"),
        ("min: 1", "min: 1\n    regions: [mars]", "models.chat.regions: 'mars'"),
        (
            "args: [--quantization=fp8]",
            "args: --quantization=fp8",
            "allowed: a list such as [--quantization=fp8]",
        ),
        (
            "args: [--quantization=fp8]",
            "args: [--port=1]",
            "engines.fp8.args: '--port=1' is not allowed; allowed: arguments that the",
        ),
        (
            "args: [--quantization=fp8]",
            "args: [--tensor-parallel-size, '8']",
            "engines.fp8.args: '--tensor-parallel-size' is not allowed",
        ),
        ("  mini:", "  mi ni:", "a name is 1 to 63 letters"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in DEMO
    assert expected in refusal(tmp_path, DEMO.replace(old, new, 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("regions: [a, b\n", "is not YAML"),
        ("- a\n- b\n", "a mapping is expected"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        ("regions: {}\nmodels: {}\n", "no pool is declared"),
        ("regions:\nmodels: {}\n", "regions: is missing or empty"),
        ("a: [*unknown]\n", "is not YAML"),
    ],
)
def test_a_file_that_is_no_shoal_yaml_is_refused(
    tmp_path: Path, text: str | bytes, expected: str
) -> None:
    assert expected in refusal(tmp_path, text)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_config(tmp_path / "none.yaml")


def test_python_objects_in_yaml_are_not_created(tmp_path: Path) -> None:
    message = refusal(
        tmp_path, DEMO.replace("min: 1", "min: !!python/object/apply:os.getpid []", 1)
    )
    assert "models.chat.min" in message or "is not YAML" in message


def test_weekly_minimums_freezes_and_idle_time_are_read_with_their_zone(tmp_path: Path) -> None:
    file = tmp_path / "shoal.yaml"
    file.write_text(
        "defaults: {timezone: Europe/Berlin}\n"
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        "models:\n"
        "  chat: {source: meta-llama/Llama-3.1-8B, slo: {ttft: 2s, tpot: 100ms}, min: 0,\n"
        '         zero_after: 15m, freeze: ["fri 16:00-24:00"],\n'
        '         floors: {"mon-fri 08:00-18:00": 3}}\n'
    )
    (chat,) = load_config(file).cluster.services
    assert chat.zero_after_s == 900.0
    assert [(str(window), least) for window, least in chat.floors] == [
        ("mon,tue,wed,thu,fri 08:00-18:00 Europe/Berlin", 3)
    ]
    assert str(chat.freezes[0]) == "fri 16:00-24:00 Europe/Berlin"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ('floors: {"always": 3}', "models.chat.floors.always"),
        ('freeze: ["25:00-26:00"]', "models.chat.freeze"),
        ("zero_after: 3h", "models.chat.zero_after: 10800s is not allowed"),
        ("scale_in_after: 31m", "models.chat.scale_in_after: 1860s is not allowed"),
        ("timezone: Mars/Base", "models.chat.timezone: 'Mars/Base' is not allowed"),
    ],
)
def test_a_wrong_window_zone_or_idle_time_is_refused(key: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "shoal.yaml"
    file.write_text(
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        "models:\n"
        "  chat: {source: meta-llama/Llama-3.1-8B, slo: {ttft: 2s, tpot: 100ms}, min: 0,\n"
        f"         {key}}}\n"
    )
    with pytest.raises(UserError, match=re.escape(words)):
        load_config(file)


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ("--cpu-offload-gb=20", "--cpu-offload-gb"),
        ("--kv-cache-dtype, int3", "--kv-cache-dtype"),
        ("--gpu-memory-utilization=1.5", "--gpu-memory-utilization"),
    ],
)
def test_an_argument_whose_memory_is_not_counted_is_refused(
    args: str, key: str, tmp_path: Path
) -> None:
    message = refusal(tmp_path, DEMO.replace("--quantization=fp8", args))
    assert message.startswith(f"shoal.yaml:40: engines.fp8.args: {key}: ")


def test_the_memory_that_an_engine_may_use_counts(tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    args = "--gpu-memory-utilization=0.7, --kv-cache-dtype=fp8"
    path.write_text(DEMO.replace("--quantization=fp8", args))
    found = load_config(path).cluster.service("chat").architecture
    assert found.memory_share == 0.7
    assert found.kv_bits == 8.0
