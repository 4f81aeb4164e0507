"""An error about contradicting values names the key that the user wrote, and its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError

TEXT = """\
policy: {{{policy}}}
defaults: {{{defaults}}}
{top}
regions: {{us: {{l4: {{gpu: L4, max: 4, price: 1.0}}}}}}
models:
  chat:
    source: meta-llama/Llama-3.1-8B
    slo: {{ttft: 2s, tpot: 100ms}}
    min: 0
    {model}
"""


def refusal(folder: Path, **parts: str) -> str:
    path = folder / "shoal.yaml"
    path.write_text(
        TEXT.format(**dict.fromkeys(("policy", "defaults", "top", "model"), "") | parts)
    )
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"policy": "long_window: 2d"},
         "shoal.yaml:1: policy.long_window: '2d' is not allowed; allowed: a duration from 10s to "
         "1d"),
        ({"policy": "global_window: 30m"},
         "shoal.yaml:1: policy.global_window: is no key any more; write long_window"),
        ({"policy": "local_window: 1h"},
         "shoal.yaml:1: policy.local_window: local_window is 3600s, long_window 1800s; allowed: "
         "local_window <= long_window"),
        ({"policy": "replan_every: 8d"},
         "shoal.yaml:1: policy.replan_every: '8d' is not allowed; allowed: a duration from 10s to "
         "7d"),
        ({"policy": "objective: throughput"},
         "shoal.yaml:1: policy.budget: 0.0 is not allowed; allowed: above 0 with objective "
         "throughput"),
        ({"defaults": "scale_in_after: 2h"},
         "shoal.yaml:2: defaults.scale_in_after: 7200s is not allowed; allowed: at most "
         "policy.long_window, 1800s"),
        ({"model": "scale_in_after: 2h"},
         "shoal.yaml:10: models.chat.scale_in_after: 7200s is not allowed; allowed: at most "
         "policy.long_window, 1800s"),
        ({"policy": "long_window: 5m"},
         "shoal.yaml:1: policy.long_window: is too short: scale_in_after of models.chat (not "
         "set) is 600s"),
        ({"model": "scale_in_after: 8d"},
         "shoal.yaml:10: models.chat.scale_in_after: '8d' is not allowed; allowed: a duration from "
         "1s to 7d"),
        ({"model": "{max: 2, floors: {'mon 08:00-09:00': 3}}"[1:-1].replace(", f", "\n    f")},
         "shoal.yaml:11: models.chat.floors: mon 08:00-09:00 UTC: 3 is not allowed; allowed: 0 to "
         "2"),
        ({"top": "measurements: /nope"},
         "shoal.yaml:3: measurements: /nope: cannot be read (No such file or directory)"),
        ({"model": "workload: {input: 900, output: 100}\n    max_len: 17"},
         "shoal.yaml:10: models.chat.workload.input: 900 tokens and 100 of output are more than "
         "max_len, 17"),
        ({"defaults": "max_len: 999",
          "model": "workload: {types: {a: {share: 100%, input: 900, output: 100}}}"},
         "shoal.yaml:10: models.chat.workload.types.a.input: 900 tokens and 100 of output are more "
         "than max_len, 999"),
        ({"model": "max_len: 512"},
         "shoal.yaml:10: models.chat.max_len: 512 is less than the 1280 tokens of a request "
         "without a declared workload; declare one"),
        ({"model": "workload: {input: 90, output: 10, prefix_hit: 100%}"},
         "shoal.yaml:10: models.chat.workload.prefix_hit: 100.0% is not allowed; allowed: 0% to "
         "99%"),
        ({"policy": "start_timeout: 0s"},
         "shoal.yaml:1: policy.start_timeout: '0s' is not allowed; allowed: a duration from 1ms to "
         "1d"),
        ({"policy": "budget: " + 400 * "9"},
         f"shoal.yaml:1: policy.budget: {57 * '9'}... is not allowed; allowed: a finite number "
         "from 0 to 1e+09"),
        ({"model": "scale: {keda: {nope: x/y}}"},
         "shoal.yaml:10: models.chat.scale.keda.nope: no such pool; allowed: l4"),
    ],
)  # fmt: skip
def test_contradicting_values_are_refused_at_their_key(
    parts: dict[str, str], said: str, tmp_path: Path
) -> None:
    assert refusal(tmp_path, **parts) == said


def test_a_pool_of_the_file_may_have_a_scale_target(tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(
        TEXT.format(policy="", defaults="", top="", model="scale: {keda: {l4: serving/chat}}")
    )
    (chat,) = load_config(path).cluster.services
    assert chat.scale_targets == (("l4", "serving/chat"),)


def test_a_declared_hit_rate_counts_for_all_requests_and_types(tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    types = "types: {a: {share: 100%, input: 90, output: 10}}"
    model = f"workload: {{prefix_hit: 55%, {types}}}"
    path.write_text(TEXT.format(policy="", defaults="", top="", model=model))
    (chat,) = load_config(path).cluster.services
    assert chat.lengths.prefix_hit == 0.55
    assert [kind.lengths.prefix_hit for kind in chat.types] == [0.55]
