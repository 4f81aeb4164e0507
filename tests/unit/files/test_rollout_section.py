"""`rollout` and `weights` of a model in shoal.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.domain.rollout_policy import CanaryPolicy, RolloutPolicy
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError

FILE = """
regions: {{eu: {{h100: {{gpu: H100, max: 4, price: 3.0}}}}}}
defaults: {{rollout: {defaults}}}
models:
  chat:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {{ttft: 2s, tpot: 60ms}}
    {extra}
"""


def policy(tmp_path: Path, extra: str = "", defaults: str = "{}") -> RolloutPolicy:
    path = tmp_path / "shoal.yaml"
    path.write_text(FILE.format(extra=extra, defaults=defaults))
    return load_config(path).cluster.services[0].rollout


def test_a_model_overrides_the_defaults_key_by_key(tmp_path: Path) -> None:
    assert policy(tmp_path) == RolloutPolicy(0.25, 60.0, 21_600.0, "rent")
    found = policy(tmp_path, "rollout: {step: 50%, watch: 2m}", "{watch: 5m, spare: none}")
    assert found == RolloutPolicy(0.5, 120.0, 21_600.0, "none")


@pytest.mark.parametrize(
    "extra", ["rollout: {spare: buy}", "rollout: {step: 120%}", "rollout: {within: 0s}"]
)
def test_bad_values_are_refused_with_key_and_value(tmp_path: Path, extra: str) -> None:
    key = extra.split("{")[1].split(":")[0]
    with pytest.raises(UserError, match=key):
        policy(tmp_path, extra)


def test_weights_are_part_of_the_version_and_the_rollout_policy_is_not(tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"

    def version(extra: str) -> str:
        path.write_text(FILE.format(extra=extra, defaults="{}"))
        return load_config(path).cluster.services[0].version

    assert version("weights: /srv/chat-2") != version("") == version("rollout: {step: 50%}")


def test_the_section_turns_a_canary_on_and_an_empty_list_off(tmp_path: Path) -> None:
    assert policy(tmp_path, "", "{}").canary is None
    assert policy(tmp_path, "", "{canary: {}}").canary == CanaryPolicy()
    found = policy(tmp_path, "rollout: {canary: {within: 2h}}", "{canary: {compare: [tpot]}}")
    assert found.canary == CanaryPolicy(compare=("tpot",), within_s=7200.0)
    off = policy(tmp_path, "rollout: {canary: {compare: []}}", "{canary: {share: 5%}}")
    assert off.canary is None


@pytest.mark.parametrize("extra", ["share: 60%", "share: 0", "compare: [speed]", "within: 1s"])
def test_impossible_canaries_are_refused_with_their_key(tmp_path: Path, extra: str) -> None:
    with pytest.raises(UserError, match=r"rollout\.canary\." + extra.split(":")[0]):
        policy(tmp_path, f"rollout: {{canary: {{{extra}}}}}", "{}")
