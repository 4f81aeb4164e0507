"""Bad input for every key of budget mode, quality mode and component graphs gives one line.

The line names the file, the key and the allowed values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from streams.cli.main import main
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"
NUMBER: tuple[object, ...] = ("x", -1, math.nan, math.inf, [], {}, None, True)
FACTOR: tuple[object, ...] = ("x", -1, 2, math.nan, [], {}, None, True)
TIME: tuple[object, ...] = ("x", 9, -1, math.nan, [], {}, None, True)
NAMES: tuple[object, ...] = ("x", -1, math.nan, {}, None, [["mini"]], ["mini", 7])
SECTION: tuple[object, ...] = ("x", -1, math.nan, [], [1])
WORD: tuple[object, ...] = (-1, math.nan, [], {}, None)

KEYS: dict[str, dict[str, tuple[object, ...]]] = {
    "budget": {
        "policy": SECTION,
        "policy.budget": NUMBER,
        "policy.objective": (*WORD, "most"),
        "models.chat.workload.types": SECTION,
        "models.chat.workload.types.story": (*SECTION, {}),
        "models.chat.workload.types.story.share": FACTOR,
        "models.chat.workload.types.story.input": NUMBER,
        "models.chat.workload.types.story.output": NUMBER,
    },
    "quality": {
        "models.auto.models": (*NAMES, [], ["mini"], ["mini", "mini"], ["mini", "other"]),
        "models.auto.quality": (*SECTION, {}, None),
        "models.auto.quality.file": (*WORD, "none.csv"),
        "models.auto.quality.at_least": ("x", math.nan, math.inf, [], {}, None, True),
        "models.auto.quality.steps": (*NUMBER, 0, 1.5, 501),
        "models.auto.req_per_s": (*NUMBER, 0),
        "models.auto.score": (*SECTION, {}),
        "models.auto.score.header": (*WORD, "a b"),
        "models.auto.score.rules": (*NUMBER, [1], [{}], [{"code": True}], [{"score": math.nan}],
                                    [{"score": 1, "longer": 3}], [{"score": 1, "longer_than": -1}],
                                    [{"score": 1, "code": "x"}],
                                    [{"score": 1, "languages": ["klingon"]}]),
        "models.auto.score.http": (*SECTION, {}),
        "models.auto.score.http.url": (*WORD, "x", "ftp://a/b"),
        "models.auto.score.http.timeout": (*TIME, "0s", "2m"),
        "models.auto.unscored": (*WORD, "other"),
        "models.auto.fallback": ("x", -1, math.nan, [], {}, None),
        "models.auto.share": NUMBER,
    },
    "components": {
        "models.omni.components": (*SECTION, {}),
        "models.omni.components.llm": SECTION,
        "models.omni.components.llm.after": ("x", -1, math.nan, {}, None, ["other"], ["llm"]),
        "models.omni.components.talker.media": ("x", -1, math.nan, {}, None, ["smell"]),
        "models.omni.requests": (*SECTION, {}),
        "models.omni.requests.text": (*SECTION, {}),
        "models.omni.requests.text.share": (*FACTOR, "40%"),
        "models.omni.requests.text.uses": ("x", -1, math.nan, [], {}, None, ["other"]),
        "models.omni.deployments": (*SECTION, {}),
        "models.omni.deployments.image": (*SECTION, {}),
        "models.omni.deployments.image.runs": ("x", -1, math.nan, [], {}, None, ["other"]),
        "models.omni.deployments.image.gpus": (*NUMBER, 3),
        "models.omni.deployments.image.req_per_s": (*SECTION, {}, None, {"NoSuchGpu": 3}),
        "models.omni.deployments.image.req_per_s.A100": (*NUMBER, 0),
        "models.omni.deployments.image.start_time": TIME,
        "models.omni.req_per_s": (*NUMBER, 0),
        "models.omni.spot": FACTOR,
    },
}  # fmt: skip


def cases() -> Iterator[Any]:
    for example, keys in KEYS.items():
        for key, values in keys.items():
            yield pytest.param(example, key, values, id=f"{example}-{key}")


def put(declared: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    made = copy.deepcopy(declared)
    *folders, last = key.split(".")
    place = made
    for folder in folders:
        place = place.setdefault(folder, {})
    place[last] = value
    return made


@pytest.mark.parametrize(("example", "key", "values"), list(cases()))
def test_an_invalid_value_of_any_key_is_refused_in_one_line(
    example: str, key: str, values: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "scores.csv").write_bytes((EXAMPLES / "scores.csv").read_bytes())
    path = tmp_path / "shoal.yaml"
    declared = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    if ".http." in key:
        declared = put(declared, "models.auto.score.http.url", "http://127.0.0.1:9/score")
    for value in values:
        path.write_text(yaml.safe_dump(put(declared, key, value), sort_keys=False))
        with pytest.raises(UserError) as refused:
            load_config(path)
        said = str(refused.value)
        assert len(said.splitlines()) == 1, value
        assert said.startswith((str(path), str(tmp_path / "none.csv"))), value
        assert key.rsplit(".", 1)[-1].rstrip("s") in said or "none.csv" in said, (value, said)


@pytest.mark.parametrize(
    ("example", "line"),
    [
        ("quality", "a service that stands for several models (auto)"),
        ("components", "models of components (omni)"),
    ],
)
def test_the_throughput_objective_is_refused_for_routed_services_and_component_models(
    example: str, line: str, tmp_path: Path
) -> None:
    (tmp_path / "scores.csv").write_bytes((EXAMPLES / "scores.csv").read_bytes())
    path = tmp_path / "shoal.yaml"
    policy = {"budget": 20, "objective": "throughput"}
    declared = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text()) | {"policy": policy}
    path.write_text(yaml.safe_dump(declared))
    with pytest.raises(UserError) as refused:
        load_config(path)
    assert str(refused.value) == (
        f"{path}: policy.objective: throughput is not allowed with {line}; allowed: cost"
    )


@pytest.mark.parametrize(
    ("example", "options", "said"),
    [
        ("components", ("--pareto", "x.html"), "--pareto: {} declares no service with a quality"),
        ("budget", ("--pareto", "x.html"), "--pareto: {} declares no service with a quality"),
        ("components", ("--demand", "x"), "--demand: not for a file with models of components"),
        ("components", ("--strategy", "homo"), "--strategy: not for a file with models of"),
        ("components", ("--objective", "makespan"), "--objective: not for a file with models of"),
        ("quality", ("--budget", "20"), "--budget: not for a service that stands for several"),
        ("quality", ("--fleet", "x"), "--fleet: not for a service that stands for several"),
        ("budget", ("--strategy", "cauchy"), "--strategy: not for budget mode"),
        ("budget", ("--requests", "5"), "--requests: only with --objective makespan"),
        ("budget", ("--budget", "nan"), "--budget: nan is not allowed"),
        ("budget", ("--budget", "-1"), "--budget: -1.0 is not allowed"),
        ("components", ("--budget", "-1"), "--budget: -1.0 is not allowed"),
        ("budget", ("--objective", "makespan", "--requests", "-3"), "--requests: -3 is not"),
    ],
)
def test_options_without_effect_in_a_mode_are_refused(
    example: str, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not ignored silently."""
    path = str(EXAMPLES / f"{example}.yaml")
    assert main(["plan", "--config", path, *options]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert said.format(path) in err
