"""Engine arguments that Shoal interprets."""

from __future__ import annotations

import pytest

from topics.engine_args import media_domains


@pytest.mark.parametrize(
    ("args", "hosts"),
    [
        ((), set()),
        (("--allowed-media-domains", "A.example", "b.example", "--seed=1", "c"),
         {"a.example", "b.example"}),
        (("--allowed_media_domains=a.example", "--seed", "1"), {"a.example"}),
        (("--allowed-media-domains=a.example", "--allowed-media-domains=b.example"),
         {"a.example", "b.example"}),
    ],
)  # fmt: skip
def test_media_hosts_are_read_from_engine_arguments(args: tuple[str, ...], hosts: set[str]) -> None:
    assert media_domains(args) == hosts
