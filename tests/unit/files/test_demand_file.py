"""The demand file of `shoal plan`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams.files.plan_inputs import load_demand
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError

CLUSTER = load_config(Path(__file__).with_name("sample.yaml")).cluster


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chat: {req_per_s: 1, input_tokens: 140000}",
         "demand.yaml:1: chat.input_tokens: 140000 tokens and"),
        ("chat: {req_per_s: 1, input_tokens: 140000}", "more than max_len, 131072 of chat"),
        (f"chat: {{req_per_s: {'9' * 400}}}", "demand.yaml:1: chat.req_per_s: 999"),
    ],
)  # fmt: skip
def test_an_invalid_demand_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "demand.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(said)):
        load_demand(path, CLUSTER)
